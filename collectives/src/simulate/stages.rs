//! Stages in a simulation: the rounds that each rank has published, with their times.

use crate::check::stage::Groups;
use crate::stage::Members;

/// Number of rounds whose payloads a stage holds: the minimum of all transports.
const DEPTH: usize = 2;

/// The rounds published so far.
#[derive(Debug)]
pub(super) struct Stages {
    groups: Groups,
    /// Boards by slot and group.
    boards: Vec<Vec<Board>>,
}

#[derive(Clone, Debug)]
struct Board {
    /// Time and step record of each publication, by member and round. Segments and calls of a slot follow
    /// each other.
    published: Vec<Vec<(f64, u32)>>,
    /// Lanes that wait for a member to publish, as rank and lane.
    waiting: Vec<(u32, u16)>,
}

/// The time at which a step that waits for others may go on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ready {
    /// From this time on, with the record of the step that it waited for, if any.
    At(f64, Option<u32>),
    /// Not before another member publishes, after which the step is tried again.
    Later,
}

impl Stages {
    pub(super) fn new(groups: Groups, slots: usize) -> Self {
        let board =
            |members: &[u32]| Board { published: vec![Vec::new(); members.len()], waiting: Vec::new() };
        let boards = groups.members.iter().map(|members| board(members)).collect();
        Self { groups, boards: vec![boards; slots] }
    }

    fn member(&self, rank: usize) -> (usize, usize) {
        self.groups.of_ranks[rank].expect("a plan with such steps has a stage")
    }

    /// Returns when a rank may publish its next round; a flag takes `latency` seconds.
    pub(super) fn may_publish(&mut self, rank: usize, lane: u16, slot: usize, latency: f64) -> Ready {
        let (group, me) = self.member(rank);
        let next = self.boards[slot][group].published[me].len();
        match (next + 1).checked_sub(DEPTH) {
            Some(least) => self.seen(Members::All, least, (rank, lane), slot, latency),
            None => Ready::At(0.0, None),
        }
    }

    /// Returns when members have published the round that this rank published last.
    pub(super) fn have_published(
        &mut self,
        of: Members,
        (rank, lane): (usize, u16),
        slot: usize,
        latency: f64,
    ) -> Ready {
        let (group, me) = self.member(rank);
        let round = self.boards[slot][group].published[me].len() - 1;
        self.seen(of, round, (rank, lane), slot, latency)
    }

    fn seen(
        &mut self,
        of: Members,
        round: usize,
        (rank, lane): (usize, u16),
        slot: usize,
        latency: f64,
    ) -> Ready {
        let (group, me) = self.member(rank);
        let board = &mut self.boards[slot][group];
        let mut ready = Ready::At(0.0, None);
        for member in of.range(board.published.len()).filter(|member| *member != me) {
            match (board.published[member].get(round), ready) {
                (Some((at, record)), Ready::At(latest, _)) if at + latency > latest => {
                    ready = Ready::At(at + latency, Some(*record));
                }
                (Some(_), _) => {}
                (None, _) => {
                    board.waiting.push((rank as u32, lane));
                    return Ready::Later;
                }
            }
        }
        ready
    }

    /// Records that a rank publishes its next round at `at`. Returns the lanes that go on one latency later,
    /// as rank and lane.
    pub(super) fn publish(&mut self, rank: usize, slot: usize, at: f64, record: u32) -> Vec<(u32, u16)> {
        let (group, me) = self.member(rank);
        let board = &mut self.boards[slot][group];
        board.published[me].push((at, record));
        std::mem::take(&mut board.waiting)
    }

    /// Returns the number of members that a rank waits for, or whose payloads it reduces.
    pub(super) fn count(&self, of: Members, rank: usize) -> usize {
        of.range(self.groups.members[self.member(rank).0].len()).len()
    }

    /// Returns a member that has not published the round that this rank published last.
    pub(super) fn missing(&self, of: Members, rank: usize, slot: usize) -> Option<u32> {
        let (group, me) = self.member(rank);
        let published = &self.boards[slot][group].published;
        let missing = of.range(published.len()).find(|member| published[*member].len() < published[me].len());
        missing.map(|member| self.groups.members[group][member])
    }
}
