//! The plan of a rank of the A2 hierarchy: which servers its tokens go to, what it forwards inside its own as a relay,
//! which rows it returns, what it sums for whom.

use super::lists::Traffic;
use super::{Ends, Head, OfAll, OfRank, known, page};
use crate::cli::OrderArg;
use crate::report::{Cell, columns_of, list_of, pairs};
use serde::Serialize;
use std::collections::BTreeMap;
use veriep_core::layout::a2_message::{ELEMENT, Task};
use veriep_core::layout::relay as layout;
use veriep_core::layout::state::{Operator, Partition};
use veriep_core::plan::order::SendOrder;
use veriep_core::plan::relay::{self, Forward};
use veriep_core::plan::split;
use veriep_core::protocol::Stage;
use veriep_core::shape::Shape;
use veriep_core::units::{CoreId, RankId, Token};

/// The partition of all offsets.
const PARTITION: Partition = Partition::P0;

struct Maker<'t> {
    traffic: &'t Traffic,
    shape: &'t Shape,
    rank: RankId,
    server: u32,
    stage: Stage,
    order: SendOrder,
    cores: Vec<CoreId>,
}

/// The plan of a rank, or of a core. Operator n, counted from 1, uses partition (n - 1) % 2 of the relay areas. The operators
/// are null when experts are not known.
#[derive(Debug, Serialize)]
pub(super) struct Plan {
    stage: u32,
    server: u32,
    number: u32,
    /// By server: the rank through which this one reaches it, and which reaches this one.
    relays: Vec<u32>,
    partition: u32,
    cores: Vec<Share>,
    dispatch: Option<Dispatch>,
    combine: Option<Combine>,
}

/// The share of a core.
#[derive(Debug, Serialize)]
struct Share {
    core: u32,
    /// Servers whose streams it issues.
    streams: Ends,
    /// That it sums in combine.
    tokens: Ends,
    /// Slots (local expert, source) that it copies out in dispatch.
    slots: Ends,
    /// Received rows that it returns in combine.
    rows: Option<Ends>,
}

#[derive(Debug, Serialize)]
struct Dispatch {
    sends: Vec<Crossing>,
    forwards: Vec<Forwarded>,
    /// Absent where cores send themselves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tasks: Vec<Posted>,
}

#[derive(Debug, Serialize)]
struct Combine {
    returns: Vec<Return>,
    /// That this rank makes as a relay, for itself included: which rows come from where.
    sums: Vec<Sum>,
    /// Own tokens: whose sums are added, in this order.
    tokens: Vec<Total>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tasks: Vec<Posted>,
}

/// A token that goes to another server.
#[derive(Debug, Serialize)]
struct Crossing {
    core: u32,
    token: u32,
    server: u32,
    to: u32,
    /// Rows that it becomes there.
    pairs: u32,
    /// Its number in the stream.
    record: u32,
    /// In the relay area of `to`.
    offset: u64,
    bytes: u64,
}

/// A row that the rank forwards inside its server.
#[derive(Debug, Serialize)]
struct Forwarded {
    core: u32,
    source: u32,
    token: u32,
    k: u32,
    to: u32,
    local_expert: u32,
    slot: u32,
    position: u32,
    pairs: u32,
    /// In the near area of `to`.
    offset: u64,
}

/// A row that goes back to the relay it came from.
#[derive(Debug, Serialize)]
struct Return {
    core: u32,
    row: u32,
    source: u32,
    token: u32,
    position: u32,
    pairs: u32,
    /// The relay, in whose near area it goes.
    to: u32,
    offset: u64,
}

#[derive(Debug, Serialize)]
struct Sum {
    core: u32,
    to: u32,
    token: u32,
    /// Near ranks by position, k ascending.
    from: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct Total {
    core: u32,
    token: u32,
    servers: Vec<u32>,
    /// Ranks that send the sums; that of its own server the rank makes itself.
    from: Vec<u32>,
}

/// What the agent posts: one task for each other server.
#[derive(Debug, Serialize)]
struct Posted {
    to: u32,
    records: u32,
    local_buf: u64,
    remote_buf: u64,
    bytes: u64,
}

pub(super) fn of(traffic: &Traffic, order: OrderArg, rank: RankId, cores: Vec<CoreId>) -> Plan {
    let shape = &traffic.shape;
    let (server, number) = shape.server_of(rank);
    let stage = traffic.choices.stage;
    let maker = Maker { traffic, shape, rank, server, stage, order: order.into(), cores };
    let received = traffic.known.then(|| maker.received());
    let rows = received.as_ref().map(|rows| rows.len() as u32);
    Plan {
        stage: if stage == Stage::Two { 2 } else { 3 },
        server,
        number,
        relays: (0..shape.servers()).map(|server| shape.relay(rank, server).0).collect(),
        partition: PARTITION.index(),
        cores: maker.cores.iter().map(|&core| maker.share(core, rows)).collect(),
        dispatch: traffic.known.then(|| maker.dispatch()),
        combine: received.map(|rows| maker.combine(&rows)),
    }
}

/// A row that a rank receives: of which source's token, and its place in the sum.
#[derive(Clone, Copy)]
struct Row {
    source: RankId,
    token: Token,
    part: layout::Part,
}

impl Maker<'_> {
    fn ids(&self, rank: RankId) -> &[i32] {
        self.traffic.inputs(rank).expert_ids
    }

    fn share(&self, core: CoreId, rows: Option<u32>) -> Share {
        let (shape, ends) = (self.shape, super::ends);
        Share {
            core: core.0,
            streams: ends(&relay::streams(shape, core)),
            tokens: ends(&split::tokens(shape, self.rank, core)),
            slots: ends(&split::slots(shape, self.rank, core)),
            rows: rows.map(|rows| ends(&split::rows(shape, rows, core))),
        }
    }

    /// The core asked for that has the stream of a server.
    fn stream_core(&self, server: u32) -> Option<u32> {
        let holds = |core: &&CoreId| relay::streams(self.shape, **core).contains(&server);
        self.cores.iter().find(holds).map(|core| core.0)
    }

    /// Offset of a record of the stream to `server`, in the relay area there.
    fn record(&self, kind: Operator, record: u32) -> u64 {
        match self.stage {
            Stage::Two => layout::gathered(self.shape, (PARTITION, kind), self.server, record),
            Stage::Three => layout::record(self.shape, PARTITION, self.server, record).offset,
        }
    }

    fn dispatch(&self) -> Dispatch {
        let shape = self.shape;
        let mut records = vec![0; shape.servers() as usize];
        let sends = relay::across(shape, self.rank, self.ids(self.rank)).filter_map(|crossing| {
            let next = &mut records[crossing.server as usize];
            let record = core::mem::replace(next, *next + 1);
            Some(Crossing {
                core: self.stream_core(crossing.server)?,
                token: crossing.token.0,
                server: crossing.server,
                to: shape.relay(self.rank, crossing.server).0,
                pairs: crossing.pairs,
                record,
                offset: self.record(Operator::Dispatch, record),
                bytes: layout::token_bytes(shape),
            })
        });
        Dispatch {
            sends: sends.collect(),
            forwards: self.forwards(),
            tasks: self.tasks(Operator::Dispatch, &records),
        }
    }

    /// By source of its streams: what the relay forwards.
    fn forwarded(&self, server: u32) -> impl Iterator<Item = (Token, Forward)> {
        let source = self.shape.relay(self.rank, server);
        let here = move |&(_, server, _): &(Token, u32, Forward)| server == self.server;
        relay::inside(self.shape, self.ids(source)).filter(here).map(|(token, _, forward)| (token, forward))
    }

    /// Rows to near ranks, those of own tokens included, in the order of each stream.
    fn forwards(&self) -> Vec<Forwarded> {
        let shape = self.shape;
        let of_stream = |server| {
            let mut counts = BTreeMap::<(RankId, u32), u32>::new();
            let source = shape.relay(self.rank, server);
            let rows = self.forwarded(server).filter_map(move |(token, forward)| {
                let Forward { k, part, home } = forward;
                let next = counts.entry((home.rank, home.local_expert)).or_default();
                let slot = core::mem::replace(next, *next + 1);
                let core = relay::forwarder(shape, server, home);
                self.cores.contains(&core).then(|| Forwarded {
                    core: core.0,
                    source: source.0,
                    token: token.0,
                    k,
                    to: home.rank.0,
                    local_expert: home.local_expert,
                    slot,
                    position: part.position,
                    pairs: part.pairs,
                    offset: layout::dispatch_slot(shape, home.local_expert, source, slot).offset,
                })
            });
            rows.collect::<Vec<_>>()
        };
        (0..shape.servers()).flat_map(of_stream).collect()
    }

    /// The rows of the rank in the order of `expand_x`.
    fn received(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for source in self.traffic.all_ranks() {
            for (token, _, forward) in relay::inside(self.shape, self.ids(source)) {
                if forward.home.rank == self.rank {
                    let row = Row { source, token, part: forward.part };
                    rows.push(((forward.home.local_expert, source, token), row));
                }
            }
        }
        rows.sort_by_key(|&(order, _)| order);
        rows.into_iter().map(|(_, row)| row).collect()
    }

    fn combine(&self, rows: &[Row]) -> Combine {
        let shape = self.shape;
        let returns = self.cores.iter().flat_map(|&core| {
            split::rows(shape, rows.len() as u32, core).filter_map(move |row| {
                let &Row { source, token, part } = rows.get(row as usize)?;
                let (server, number) = shape.server_of(source);
                Some(Return {
                    core: core.0,
                    row,
                    source: source.0,
                    token: token.0,
                    position: part.position,
                    pairs: part.pairs,
                    to: shape.rank_on(self.server, number).0,
                    offset: layout::combine_slot(shape, server, token, part.position).offset,
                })
            })
        });
        let mut records = vec![0; shape.servers() as usize];
        let sums = (0..shape.servers()).flat_map(|server| {
            let mut sums = BTreeMap::<u32, Vec<u32>>::new();
            for (token, forward) in self.forwarded(server) {
                sums.entry(token.0).or_default().push(forward.home.rank.0);
            }
            records[server as usize] = sums.len() as u32;
            let to = shape.relay(self.rank, server).0;
            // The own server's sums are made by whoever sums the token.
            sums.into_iter().filter_map(move |(token, from)| {
                let own = server == self.server;
                let core = if own { self.token_core(token) } else { self.stream_core(server) };
                Some(Sum { core: core?, to, token, from })
            })
        });
        let sums = sums.collect();
        Combine {
            returns: returns.collect(),
            sums,
            tokens: self.totals(),
            tasks: self.tasks(Operator::Combine, &records),
        }
    }

    fn token_core(&self, token: u32) -> Option<u32> {
        let holds = |core: &&CoreId| split::tokens(self.shape, self.rank, **core).contains(&token);
        self.cores.iter().find(holds).map(|core| core.0)
    }

    fn totals(&self) -> Vec<Total> {
        let (shape, ids) = (self.shape, self.ids(self.rank));
        let of_token = |token: u32| {
            let k = shape.k();
            let row = ids.get((token * k) as usize..((token + 1) * k) as usize)?;
            let servers: Vec<_> = (0..shape.servers()).filter(|&s| relay::pairs(shape, row, s) > 0).collect();
            let from = servers.iter().map(|&server| shape.relay(self.rank, server).0).collect();
            Some(Total { core: self.token_core(token)?, token, servers, from })
        };
        (0..shape.bs(self.rank)).filter_map(of_token).collect()
    }

    /// What the agent posts, if there is one: one task for each other server, with so many records.
    fn tasks(&self, kind: Operator, records: &[u32]) -> Vec<Posted> {
        if self.stage == Stage::Three {
            return Vec::new();
        }
        let others = self.shape.servers() - 1;
        let issued = self.order.items(0..others, RankId(self.server)).filter_map(|i| {
            let server = if i < self.server { i } else { i + 1 };
            let records = *records.get(server as usize)?;
            let task = Task::stream(self.shape, (PARTITION, kind), self.rank, server, records);
            self.stream_core(server)?;
            Some(Posted {
                to: task.remote_rank_id,
                records,
                local_buf: task.local_buf,
                remote_buf: task.remote_buf,
                bytes: task.count * ELEMENT,
            })
        });
        issued.collect()
    }
}

/// All ranks, counted.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    servers: u32,
    traffic: Vec<OfOne>,
}

/// One rank in one round. Sums take the way of tokens back, rows that of forwarded rows.
#[derive(Clone, Debug, Default, Serialize)]
struct OfOne {
    rank: u32,
    /// Own tokens to other servers, once for each.
    tokens_across: u64,
    /// The bytes of their rows.
    across_bytes: u64,
    /// Tokens of namesakes that it gets.
    tokens_relayed: u64,
    /// Rows that it forwards to other near ranks, own tokens' included.
    rows_forwarded: u64,
    inside_bytes: u64,
    /// Rows that its experts get.
    rows_received: u64,
}

pub(super) fn summary(traffic: &Traffic) -> Summary {
    let shape = &traffic.shape;
    let of = |rank: RankId| OfOne { rank: rank.0, ..OfOne::default() };
    let mut ranks: Vec<_> = traffic.all_ranks().filter(|_| traffic.known).map(of).collect();
    for rank in traffic.all_ranks().filter(|_| traffic.known) {
        let ids = traffic.inputs(rank).expert_ids;
        for crossing in relay::across(shape, rank, ids) {
            let sent = &mut ranks[rank.index()];
            sent.tokens_across += 1;
            sent.across_bytes += shape.payload_bytes();
            ranks[shape.relay(rank, crossing.server).index()].tokens_relayed += 1;
        }
        for (_, server, forward) in relay::inside(shape, ids) {
            let (relay, to) = (shape.relay(rank, server), forward.home.rank);
            let moves = u64::from(relay != to);
            ranks[relay.index()].rows_forwarded += moves;
            ranks[relay.index()].inside_bytes += moves * shape.payload_bytes();
            ranks[to.index()].rows_received += 1;
        }
    }
    Summary { servers: shape.servers(), traffic: ranks }
}

/// The same for people.
pub(super) fn table(head: &Head, of: &OfRank, plan: &Plan) -> String {
    let more = [
        ("stage", plan.stage.to_string()),
        ("place", format!("server {}, number {} there", plan.server, plan.number)),
        ("relays by server", plan.relays.cell()),
        ("partition of all offsets", plan.partition.to_string()),
    ];
    let shares = columns_of![Share;
        "core" => core, "servers" => streams, "tokens" => tokens, "slots" => slots, "received rows" => rows,
    ];
    let mut lists = vec![list_of("shares", &shares, &plan.cores)];
    lists.extend(plan.dispatch.iter().flat_map(of_dispatch));
    lists.extend(plan.combine.iter().flat_map(of_combine));
    page(head, of, more, lists)
}

fn of_dispatch(dispatch: &Dispatch) -> Vec<String> {
    let sends = columns_of![Crossing;
        "core" => core, "token" => token, "server" => server, "to" => to, "pairs" => pairs, "record" => record,
        "offset" => offset, "bytes" => bytes,
    ];
    let forwards = columns_of![Forwarded;
        "core" => core, "source" => source, "token" => token, "k" => k, "to" => to,
        "local expert" => local_expert, "slot" => slot, "position" => position, "of" => pairs,
        "offset" => offset,
    ];
    let mut lists = vec![
        list_of("dispatch sends to other servers", &sends, &dispatch.sends),
        list_of("dispatch forwards inside the server", &forwards, &dispatch.forwards),
    ];
    lists.extend(of_tasks("dispatch tasks, in the order of issue", &dispatch.tasks));
    lists
}

fn of_combine(combine: &Combine) -> Vec<String> {
    let returns = columns_of![Return;
        "core" => core, "row" => row, "source" => source, "token" => token, "position" => position,
        "of" => pairs, "to" => to, "offset" => offset,
    ];
    let sums = columns_of![Sum; "core" => core, "to" => to, "token" => token, "rows of ranks" => from];
    let tokens = columns_of![Total; "core" => core, "token" => token, "servers" => servers, "from" => from];
    let mut lists = vec![
        list_of("combine returns inside the server", &returns, &combine.returns),
        list_of("combine sums inside the server", &sums, &combine.sums),
        list_of("combine sums own tokens", &tokens, &combine.tokens),
    ];
    lists.extend(of_tasks("combine tasks, in the order of issue", &combine.tasks));
    lists
}

fn of_tasks(title: &str, tasks: &[Posted]) -> Option<String> {
    let columns = columns_of![Posted;
        "to" => to, "records" => records, "local_buf" => local_buf, "remote_buf" => remote_buf,
        "bytes" => bytes,
    ];
    (!tasks.is_empty()).then(|| list_of(title, &columns, tasks))
}

pub(super) fn summary_table(head: &Head, of: &OfAll, summary: &Summary) -> String {
    let about = pairs(&[
        ("source", head.source.clone()),
        ("group", format!("{} ranks on {} servers x {} cores", of.ranks, summary.servers, of.cores)),
        ("experts", known(head)),
    ]);
    if !head.experts_known {
        return about;
    }
    let columns = columns_of![OfOne;
        "rank" => rank, "tokens across" => tokens_across, "their rows B" => across_bytes,
        "tokens relayed" => tokens_relayed, "rows forwarded" => rows_forwarded,
        "these rows B" => inside_bytes, "rows received" => rows_received,
    ];
    format!("{about}\n{}", list_of("", &columns, &summary.traffic))
}
