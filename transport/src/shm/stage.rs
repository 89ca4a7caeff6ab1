//! The stage of a host: all areas of its arena except that of the compiled exchange.
//!
//! A member that publishes checks the doorbells of all others, as it checks one peer's after a message. This costs
//! one fence and one line per member, which stays in the caches while no member sleeps.

use super::arena::{Arena, EXCHANGE_MAX, STAGE_AREAS, Wake};
use super::copier::Copier;
use super::endpoint::ShmEndpoint;
use super::rounds::Rounds;
use crate::stage::{Awaited, Needs, Stage, StageCaps, StageMismatch};

/// Capabilities of the stage, for any members.
pub(super) const STAGE: StageCaps = StageCaps { areas: STAGE_AREAS, payload_max: EXCHANGE_MAX };

/// One area, as seen by the owner of the endpoint.
#[derive(Debug)]
pub(super) struct Area {
    rounds: Rounds,
    /// Whether the latest answer was "not yet", so that the owner may sleep.
    waits: bool,
}

/// Returns all areas of the stage, before their first rounds.
pub(super) fn areas(arena: &Arena, member: u32) -> Vec<Area> {
    (1..=STAGE_AREAS)
        .map(|area| Area { rounds: Rounds::new(arena.clone(), area, member), waits: false })
        .collect()
}

impl Area {
    fn told(&mut self, answer: Result<bool, StageMismatch>) -> Result<bool, StageMismatch> {
        self.waits = answer == Ok(false);
        answer
    }
}

impl ShmEndpoint {
    /// Returns whether the owner waits for something on the stage.
    pub(super) fn waits_on_stage(&self) -> bool {
        self.areas.iter().any(|area| area.waits)
    }

    fn wake_members(&self) {
        let Some(arena) = &self.arena else { return };
        arena.fences().light();
        for peer in &self.peers {
            if arena.wake(peer.member) == Wake::Nudge {
                self.nudge(peer);
            }
        }
    }

    fn area(&mut self, area: u16) -> &mut Area {
        &mut self.areas[usize::from(area)]
    }
}

impl Stage for ShmEndpoint {
    fn members(&self) -> &[u32] {
        &self.members
    }

    fn member(&self) -> usize {
        self.member as usize
    }

    fn is_free(&mut self, area: u16, len: usize) -> Result<bool, StageMismatch> {
        let area = self.area(area);
        let answer = area.rounds.is_free(len);
        area.told(answer)
    }

    fn slot(&mut self, area: u16, len: usize) -> *mut u8 {
        let rounds = &self.area(area).rounds;
        assert!(rounds.is_known_free(len), "somebody may still read what would be overwritten");
        rounds.slot(len)
    }

    fn copier(&mut self) -> &mut Copier {
        &mut self.copier
    }

    fn publish(&mut self, area: u16, tag: u64, digest: u64, len: usize) {
        let rounds = &mut self.area(area).rounds;
        assert!(rounds.is_known_free(len), "somebody may still read what would be overwritten");
        rounds.publish(tag, digest);
        self.wake_members();
    }

    fn has_published(&mut self, area: u16, needs: Needs) -> Result<bool, StageMismatch> {
        let area = self.area(area);
        let answer = area.rounds.have_published(needs);
        area.told(answer)
    }

    fn payload(&self, area: u16, member: usize, len: usize) -> *const u8 {
        let rounds = &self.areas[usize::from(area)].rounds;
        assert!(rounds.was_seen(member), "member {member} was not waited for");
        rounds.payload(member, len)
    }

    fn waited_for(&self, area: u16, what: Awaited) -> Vec<usize> {
        self.areas[usize::from(area)].rounds.late(what)
    }
}
