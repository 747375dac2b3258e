//! The plan of a rank of the A2 hierarchy: which servers its tokens go to, what it forwards inside its own as a relay,
//! which rows it returns, what it sums for whom.

use super::Ends;
use super::lists::Traffic;
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
pub struct Plan {
    pub stage: u32,
    pub server: u32,
    pub number: u32,
    /// By server: the rank through which this one reaches it, and which reaches this one.
    pub relays: Vec<u32>,
    pub partition: u32,
    pub cores: Vec<Share>,
    pub dispatch: Option<Dispatch>,
    pub combine: Option<Combine>,
}

/// The share of a core.
#[derive(Debug, Serialize)]
pub struct Share {
    pub core: u32,
    /// Servers whose streams it issues.
    pub streams: Ends,
    /// That it sums in combine.
    pub tokens: Ends,
    /// Slots (local expert, source) that it copies out in dispatch.
    pub slots: Ends,
    /// Received rows that it returns in combine.
    pub rows: Option<Ends>,
}

#[derive(Debug, Serialize)]
pub struct Dispatch {
    pub sends: Vec<Crossing>,
    pub forwards: Vec<Forwarded>,
    /// Absent where cores send themselves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<Posted>,
}

#[derive(Debug, Serialize)]
pub struct Combine {
    pub returns: Vec<Return>,
    /// That this rank makes as a relay, for itself included: which rows come from where.
    pub sums: Vec<Sum>,
    /// Own tokens: whose sums are added, in this order.
    pub tokens: Vec<Total>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<Posted>,
}

/// A token that goes to another server.
#[derive(Debug, Serialize)]
pub struct Crossing {
    pub core: u32,
    pub token: u32,
    pub server: u32,
    pub to: u32,
    /// Rows that it becomes there.
    pub pairs: u32,
    /// Its number in the stream.
    pub record: u32,
    /// In the relay area of `to`.
    pub offset: u64,
    pub bytes: u64,
}

/// A row that the rank forwards inside its server.
#[derive(Debug, Serialize)]
pub struct Forwarded {
    pub core: u32,
    pub source: u32,
    pub token: u32,
    pub k: u32,
    pub to: u32,
    pub local_expert: u32,
    pub slot: u32,
    pub position: u32,
    pub pairs: u32,
    /// In the near area of `to`.
    pub offset: u64,
}

/// A row that goes back to the relay it came from.
#[derive(Debug, Serialize)]
pub struct Return {
    pub core: u32,
    pub row: u32,
    pub source: u32,
    pub token: u32,
    pub position: u32,
    pub pairs: u32,
    /// The relay, in whose near area it goes.
    pub to: u32,
    pub offset: u64,
}

#[derive(Debug, Serialize)]
pub struct Sum {
    pub core: u32,
    pub to: u32,
    pub token: u32,
    /// Near ranks by position, k ascending.
    pub from: Vec<u32>,
}

#[derive(Debug, Serialize)]
pub struct Total {
    pub core: u32,
    pub token: u32,
    pub servers: Vec<u32>,
    /// Ranks that send the sums; that of its own server the rank makes itself.
    pub from: Vec<u32>,
}

/// What the agent posts: one task for each other server.
#[derive(Debug, Serialize)]
pub struct Posted {
    pub to: u32,
    pub records: u32,
    pub local_buf: u64,
    pub remote_buf: u64,
    pub bytes: u64,
}

pub fn of(traffic: &Traffic, order: SendOrder, rank: RankId, cores: Vec<CoreId>) -> Plan {
    let shape = &traffic.shape;
    let (server, number) = shape.server_of(rank);
    let stage = traffic.choices.stage;
    let maker = Maker { traffic, shape, rank, server, stage, order, cores };
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
            // Its own server's sums are made by the core that sums the token.
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
pub struct Summary {
    pub servers: u32,
    pub traffic: Vec<OfOne>,
}

/// One rank in one round. Sums take the way of tokens back, rows that of forwarded rows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OfOne {
    pub rank: u32,
    /// Own tokens to other servers, once for each.
    pub tokens_across: u64,
    /// The bytes of their rows.
    pub across_bytes: u64,
    /// Tokens of namesakes that it gets.
    pub tokens_relayed: u64,
    /// Rows that it forwards to other near ranks, own tokens' included.
    pub rows_forwarded: u64,
    pub inside_bytes: u64,
    /// Rows that its experts get.
    pub rows_received: u64,
}

pub fn summary(traffic: &Traffic) -> Summary {
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
