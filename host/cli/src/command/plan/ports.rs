//! Loads of ports for people.

use crate::report::{columns_of, list_of};
use veriep_plan::plans::ports::{Port, Ports};

pub(super) fn table(ports: &Ports, port_offset: u64) -> String {
    let step = format!("step {}: heads", ports.step);
    let list = |title: &str, ports: &[Port]| {
        list_of(
            title,
            &columns_of![Port;
                "port" => port,
                "blocks" => block_starts,
                "flags" => flags,
                &step => at_step.heads,
                "packets" => at_step.packets,
                "all: heads" => all_steps.heads,
                "packets" => all_steps.packets,
                "bytes" => all_steps.bytes,
            ],
            ports,
        )
    };
    let mut lists = vec![list("ports of dispatch, without port offset", &ports.without_offset)];
    lists.extend(
        ports
            .with_offset
            .as_ref()
            .map(|with| list(&format!("ports of dispatch, port offset {port_offset}"), with)),
    );
    lists.join("\n\n")
}
