//! Failures among ranks of one host that have no control plane, because world rank 0 has left in good order.
//!
//! Messages travel over links, whose ends are noticed. An exchange and a stage have no link, so a rank that waits long
//! there checks that the ranks it waits for are alive. A rank that gives up leaves the cause on the board of the host,
//! encoded in one word. After a mismatch, each rank also shows its own call there.

use std::time::{Duration, Instant};

use kolo_transport::ErrorKind;
use kolo_transport::shm::Board;

use super::fail::give_up;
use crate::call;
use crate::call::{CallLabel, Summary, Waited};
use crate::communicator::{Core, CoreGuard, Shared};
use crate::control::{AbortCause, AbortKind, Loss};
use crate::error::{LossCause, Result};
use crate::failure::{Cause, LastWord};
use crate::wait;

/// Longest wait for a rank to show its mismatched call: that rank meets this one's call within a sleep.
const NAME_MAX: Duration = Duration::from_millis(500);

/// Greatest distance, in operations, between ranks with different calls at which they still find each other's call.
const APART_MAX: u64 = 64;

fn board(core: &Core) -> Option<&Board> {
    core.exchange.as_ref().map(|exchange| exchange.compiled.board())
}

/// Leaves the cause of a failure on the board, for ranks that no control plane tells.
pub(super) fn leave_word(core: &Core, cause: &Cause, rank: u32) {
    if let Some(board) = board(core) {
        board.abort(LastWord::of(cause, rank).encode());
    }
}

/// Returns whether a rank of the host has left such a word.
pub(super) fn has_word(core: &Core) -> bool {
    board(core).is_some_and(|board| board.aborted() != 0)
}

/// Shows this rank's call to the other ranks of the host.
pub(super) fn show_call(core: &Core, waited: Waited) {
    if let (Some(board), Some(summary)) = (board(core), waited.summary()) {
        let CallLabel { kind, count } = summary.label();
        board.announce(kind, count);
    }
}

/// Returns the word that another rank has left on the board, if no control plane will tell its cause.
#[inline]
pub(super) fn last_word(shared: &Shared, core: &Core) -> Option<LastWord> {
    let word = board(core).map_or(0, Board::aborted);
    let is_needed =
        word != 0 && !shared.membership.abort_flag().is_raised() && shared.world.control.is_closed();
    is_needed.then(|| LastWord::decode(word))
}

/// Adopts the cause of such a word. This may take a while, in which other threads need the core.
#[cold]
pub(super) fn adopt_last_word(shared: &Shared, word: LastWord, waited: Waited) {
    show_call(&shared.core(), waited);
    let LastWord { kind, by, about } = word;
    if by >= shared.group.size || by == shared.group.rank {
        return;
    }
    let cause = match kind {
        AbortKind::PeerLost => {
            AbortCause::lost(about, &Loss::new(LossCause::Closed, format!("rank {by} found it gone")))
        }
        AbortKind::Mismatch => mismatch_of_others(shared, by, about, waited),
        AbortKind::Timeout => AbortCause::new(by, kind, "it did not finish in time"),
        AbortKind::User
        | AbortKind::CoordinatorLost
        | AbortKind::Transport
        | AbortKind::Revoked
        | AbortKind::Fenced => AbortCause::new(about, AbortKind::User, "it gave up"),
    };
    shared.membership.abort_flag().raise(cause);
}

/// Describes a mismatch between `by` and `about`, which may be this rank, as this rank sees it.
fn mismatch_of_others(shared: &Shared, by: u32, about: u32, waited: Waited) -> AbortCause {
    let own = waited.summary().map(Summary::label);
    // If this rank has the same call as `by`, it names the other's.
    let other = if own == shown_call(&shared.core(), by) { about } else { by };
    // That rank has shown an earlier call, or none, until it meets the mismatch too.
    let shown = || shown_call(&shared.core(), other);
    let theirs = within(NAME_MAX, || shown().filter(|theirs| Some(*theirs) != own));
    let theirs = theirs.map_or_else(|| "something else".to_owned(), |theirs| theirs.to_string());
    AbortCause::new(other, AbortKind::Mismatch, theirs)
}

/// Looks repeatedly until there is an answer, or until `patience` is over.
fn within<R>(patience: Duration, look: impl Fn() -> Option<R>) -> Option<R> {
    let until = Instant::now() + patience;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= until {
            return found;
        }
        wait::sleep(Duration::from_millis(1));
    }
}

/// Returns the call that a rank of the host has shown.
fn shown_call(core: &Core, rank: u32) -> Option<CallLabel> {
    let board = board(core)?;
    let (kind, count) = ((rank as usize) < board.members()).then(|| board.announced(rank as usize))?;
    (kind != 0).then_some(CallLabel { kind, count })
}

/// Describes the call of a peer whose message has this tag, if the peer shows that call. This rank's own call is number
/// `sequence`.
pub(super) fn shown_by(shared: &Shared, peer: u32, tag: u64, sequence: u64) -> Option<String> {
    if !shared.world.control.is_closed() {
        return None;
    }
    within(NAME_MAX, || {
        let label = shown_call(&shared.core(), peer)?;
        let is_it = |number: &u64| call::tag(shared.group.id, *number, label.signature()) == tag;
        let mut numbers = sequence.saturating_sub(APART_MAX)..sequence + APART_MAX;
        match numbers.find(is_it)? {
            number if number == sequence => Some(label.to_string()),
            number => Some(format!("{label} as operation #{number}")),
        }
    })
}

/// Fails if the current exchange or the stage waits for a rank that is gone, and no control plane would say so.
pub(super) fn look_for_the_gone<'a>(
    shared: &'a Shared,
    mut core: CoreGuard<'a>,
    waited: Waited,
) -> Result<CoreGuard<'a>> {
    // Once a cause is known, a rank that is gone may have left because of it.
    if !shared.world.control.is_closed() || shared.membership.abort_flag().is_raised() {
        return Ok(core);
    }
    let late = |core: &Core| {
        let exchange = core.exchange.as_ref().filter(|exchange| exchange.compiled.is_under_way());
        let mut late = exchange.map_or_else(Vec::new, |exchange| exchange.compiled.waiting_for());
        late.extend(core.engine.late_on_stage());
        late
    };
    for peer in late(&core) {
        let looked = core.engine.links_mut().endpoint(peer).and_then(|endpoint| endpoint.look_for(peer));
        let Err(error) = looked else { continue };
        if error.kind != ErrorKind::PeerLost {
            tracing::warn!(peer, %error, "the end of this rank cannot be noticed");
            continue;
        }
        // Everything that the rank published before its end has arrived by now.
        if late(&core).contains(&peer) {
            drop(core);
            return Err(give_up(
                shared,
                Cause::PeerLost { peer, cause: Loss::new(LossCause::Closed, error.detail) },
                waited,
            ));
        }
    }
    Ok(core)
}
