//! The orders on which a search relies: each lets something land in some model, and each is a litmus test of loom's, which
//! `verify/tests/loom/orders.rs` demands.

use crate::verdict::explored;
use veriep_verify::explorer::Model;
use veriep_verify::order::Order::{
    self, ClearQuietPublish, Hearsay, PutPublish, QuietBarrierPublish, TransferDoorbell, TransferInOrder,
};

fn relied_on(name: &str, model: &Model) -> Vec<Order> {
    let report = explored(name, model);
    assert!(report.complete, "{name}");
    report.orders.into_iter().collect()
}

#[test]
fn a_search_relies_on_orders_that_are_litmus_tests_of_loom() {
    let all = [PutPublish, QuietBarrierPublish, ClearQuietPublish, Hearsay];
    let two = |schedule| Model::new(2, schedule).weak();
    assert_eq!(relied_on("orders, 2 ranks x 1 core, DC for any number of rounds", &two("DC")), all);
    assert_eq!(relied_on("orders, 2 ranks x 2 cores, DC twice", &two("DC").cores(2).units(2)), all);
    assert_eq!(relied_on("orders, separate, DC for any number of rounds", &two("DC").separate()), all);
    assert_eq!(relied_on("orders, blocks, DC for any number of rounds", &two("DC").blocks(1)), all);
    assert_eq!(relied_on("orders, in place, DC for any number of rounds", &two("DC").in_place()), all);
    assert_eq!(relied_on("orders, direct, DC for any number of rounds", &two("DC").direct(1)), all);
}

#[test]
fn a_search_with_agents_relies_on_the_orders_of_transfers_too() {
    let one = [QuietBarrierPublish, ClearQuietPublish, TransferDoorbell, TransferInOrder];
    let two = [QuietBarrierPublish, ClearQuietPublish, Hearsay, TransferDoorbell, TransferInOrder];
    let a2 = |schedule| Model::new(2, schedule).a2().weak();
    assert_eq!(relied_on("orders, A2, 2 ranks x 1 core, DC for any number of rounds", &a2("DC")), one);
    assert_eq!(relied_on("orders, A2, 2 ranks x 2 cores, D once", &a2("D").cores(2).units(1)), two);
    let hierarchy = |near| Model::new(2, "DC").hierarchy(near).weak();
    let near = [PutPublish, QuietBarrierPublish, Hearsay];
    let far = [PutPublish, QuietBarrierPublish, Hearsay, TransferInOrder];
    assert_eq!(
        relied_on("orders, hierarchy, 1 server x 2 ranks, DC for any number of rounds", &hierarchy(2)),
        near
    );
    assert_eq!(
        relied_on("orders, hierarchy, 2 servers x 1 rank, DC for any number of rounds", &hierarchy(1)),
        far
    );
    assert_eq!(
        relied_on(
            "orders, stage 2, 2 servers x 1 rank, DC for any number of rounds",
            &hierarchy(1).stage_two()
        ),
        Order::ALL
    );
}
