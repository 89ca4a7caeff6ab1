//! The final report of a rank whose deadline has passed: the ranks that it waits for, and their states.

use std::fmt::Write as _;
use std::time::Duration;

use super::asking::ask_through;
use super::fail::{fail, give_up};
use crate::call::Waited;
use crate::communicator::{Core, Shared};
use crate::control::Status;
use crate::error::{AwaitedRank, Error, PeerState};
use crate::failure::{Carrier, Cause};

/// Longest wait for answers after a rank's deadline. It is long enough for the report to name the right rank on a busy
/// machine too.
const LAST_ANSWER_MAX: Duration = Duration::from_secs(1);

/// Ranks that are asked at once to find the one that holds up all others.
const SEARCHED_MAX: usize = 256;

/// Most silent peers in a status, and most pairs in an error. A host that is cut off makes a pair with every other
/// host.
const PAIRS_MAX: usize = 4;

/// Two ranks of which the second does not acknowledge what the first sends.
struct Cut {
    from: u32,
    to: u32,
    /// Bytes of the packets that are lost although short ones arrive, where this rank has found that.
    lost_packet_bytes: Option<u32>,
}

/// Reports that a deadline has passed.
pub(crate) fn time_out(shared: &Shared, waited: Waited, after: Duration, peers: &[u32]) -> Error {
    let (asked, carrier) = ask_through(shared, peers, LAST_ANSWER_MAX);
    let holds_up = |(_, status): &&(u32, Option<Status>)| holds_up(status.as_ref(), waited.number());
    let is_outside = |(_, status): &&(u32, Option<Status>)| is_outside(status.as_ref(), waited.number());
    let culprit_is_known = asked.iter().any(|asked| holds_up(&asked));
    let mut core = shared.core();
    let unheard_by = note_unheard(shared, &core);
    let cut = |to| {
        let lost_packet_bytes = core.engine.links_mut().black_hole(to);
        Cut { from: shared.group.rank, to, lost_packet_bytes }
    };
    let mut cuts: Vec<Cut> = unheard_by.into_iter().map(cut).collect();
    drop(core);
    asked.iter().for_each(|(rank, status)| add_cuts(shared, &mut cuts, *rank, status.as_ref()));
    let known = |(peer, status): &(u32, Option<Status>)| awaited(shared, *peer, status.as_ref(), carrier);
    let mut waiting_for: Vec<AwaitedRank> = asked.iter().map(known).collect();
    let not_asked = |peer: &u32| AwaitedRank::new(*peer, PeerState::Unknown, "not asked".to_owned());
    waiting_for.extend(peers.iter().skip(asked.len()).map(not_asked));
    if carrier == Carrier::Silent {
        put_carrier_first(shared, &mut waiting_for);
    } else if !culprit_is_known && cuts.is_empty() {
        // The awaited ranks are themselves waiting for others.
        let others =
            (0..shared.group.size).filter(|rank| *rank != shared.group.rank && !peers.contains(rank));
        let others: Vec<u32> = others.take(SEARCHED_MAX).collect();
        let answers = shared.membership.ask_all(&others, LAST_ANSWER_MAX);
        let answers: Vec<_> = others.into_iter().zip(answers).collect();
        answers.iter().for_each(|(rank, status)| add_cuts(shared, &mut cuts, *rank, status.as_ref()));
        // If every such rank waits for another one, in a message or an earlier collective, it may still be the one that holds
        // up all others.
        let is_one_known = asked.iter().any(|asked| is_outside(&asked));
        let waits = || answers.iter().find(is_outside).filter(|_| !is_one_known);
        let culprit = answers.iter().find(holds_up).or_else(waits);
        waiting_for.extend(culprit.filter(|_| !waited.is_message()).map(known));
    }
    if waited.is_message() {
        let core = shared.core();
        for AwaitedRank { rank, detail, .. } in &mut waiting_for {
            let Some((tag, len, max)) = core.engine.stands_before(*rank) else { continue };
            let _ = write!(
                detail,
                "; it is stuck behind a message of {len} bytes with tag {tag}, which no rank receives and for \
                 which KOLO_UNEXPECTED_BYTES={max} leaves no room"
            );
        }
    }
    put_cuts_first(&mut waiting_for, &cuts, shared.group.rank);
    if shared.membership.abort_flag().is_raised() {
        return fail(shared, waited);
    }
    let (operation, number) = (waited.to_string(), waited.number());
    give_up(shared, Cause::Timeout { after, waiting_for, operation, number }, waited)
}

/// Returns whether a rank with this status has not come to the collective with this number, if there is one, and is not
/// inside an earlier one. A silent rank counts as such a rank.
fn is_outside(status: Option<&Status>, number: Option<u64>) -> bool {
    let has_not_come = |status: &Status| number.is_some_and(|number| status.started < number);
    status.is_none_or(|status| has_not_come(status) && status.finished >= status.started)
}

/// Returns whether such a rank itself waits for no other rank, as far as it knows.
fn holds_up(status: Option<&Status>, number: Option<u64>) -> bool {
    is_outside(status, number) && status.is_none_or(|status| status.waits_in.is_none())
}

/// Describes a peer that was asked.
fn awaited(shared: &Shared, peer: u32, status: Option<&Status>, carrier: Carrier) -> AwaitedRank {
    let over = || {
        let route = shared.group.routes.iter().find(|route| route.peer == peer && !route.shares_memory());
        route.map_or_else(String::new, |route| format!("; reached over {}, {}", route.transport, route.how))
    };
    let (state, detail) = match (status, carrier) {
        // Another thread of this rank might still have made the matching call, so this is known only now.
        _ if peer == shared.group.rank => (
            PeerState::Itself,
            "itself: a message to oneself takes a send and a receive, one of them started before the other \
             or made by another thread"
                .to_owned(),
        ),
        // The peer waits too: perhaps data sent to it does not arrive.
        (Some(status), _) if status.finished < status.started || status.waits_in.is_some() => {
            (PeerState::Waiting { started: status.started }, format!("{status}{}", over()))
        }
        (Some(status), _) => (PeerState::Outside { finished: status.finished }, status.to_string()),
        (None, _) if shared.membership.departed(peer) => (PeerState::Left, "it has left".to_owned()),
        (None, Carrier::Answers) => (PeerState::Silent, "no answer from it".to_owned()),
        (None, Carrier::Silent) => (PeerState::Unknown, "not known, since rank 0 is silent".to_owned()),
        (None, Carrier::Gone) => (
            PeerState::Unknown,
            "not known, since rank 0 has left and no rank passes on status requests".to_owned(),
        ),
    };
    AwaitedRank::new(peer, state, detail)
}

/// Shows on the board, and thus to other ranks, which peers do not acknowledge this rank's data.
pub(super) fn note_unheard(shared: &Shared, core: &Core) -> Vec<u32> {
    let peers = (0..shared.group.size).filter(|peer| core.engine.links().is_unheard(*peer));
    let peers: Vec<u32> = peers.take(PAIRS_MAX).collect();
    shared.membership.board().unheard_by(peers.clone());
    peers
}

/// Adds the cuts that a rank has reported to the known ones. A pair counts once, whichever of its two ranks reports it.
fn add_cuts(shared: &Shared, cuts: &mut Vec<Cut>, rank: u32, status: Option<&Status>) {
    for peer in status.map_or(&[][..], |status| &status.unheard_by).iter().copied().take(PAIRS_MAX) {
        let is_known = |cut: &Cut| [(rank, peer), (peer, rank)].contains(&(cut.from, cut.to));
        if !cuts.iter().any(is_known) && peer < shared.group.size && peer != rank {
            cuts.push(Cut { from: rank, to: peer, lost_packet_bytes: None });
        }
    }
}

const CHECK: &str = "check the network between the two";

/// Describes a path that loses long packets.
fn black_hole(bytes: u32, from: u32) -> String {
    format!(
        "it does not acknowledge packets of {bytes} bytes from rank {from}, although new connections to it open: most \
         likely a switch or tunnel on the way carries less than the interfaces' MTU. Set one MTU on the whole path \
         (`ip link set DEVICE mtu 1500` and less), or net.ipv4.tcp_mtu_probing=1; `kolo doctor` names the hosts"
    )
}

/// Puts pairs between which nothing gets through first: they hold up all ranks, even those that wait for a healthy one.
fn put_cuts_first(waiting_for: &mut Vec<AwaitedRank>, cuts: &[Cut], own: u32) {
    for &Cut { from, to, lost_packet_bytes } in cuts.iter().take(PAIRS_MAX) {
        let (rank, other, cut) = match lost_packet_bytes {
            Some(bytes) => (to, from, black_hole(bytes, from)),
            None if to == own => (from, to, format!("its data for rank {to} is not acknowledged: {CHECK}")),
            None => (to, from, format!("it does not acknowledge data from rank {from}: {CHECK}")),
        };
        let known = waiting_for.iter().position(|awaited| awaited.rank == rank);
        let rest = known.map_or_else(String::new, |at| format!("; {}", waiting_for.remove(at).detail));
        let detail = format!("{cut}{rest}");
        waiting_for.insert(0, AwaitedRank::new(rank, PeerState::CutOff { other }, detail));
    }
}

/// Puts the carrier of the questions first, if world rank 0 carries them and is silent: there is no evidence against
/// other ranks.
fn put_carrier_first(shared: &Shared, waiting_for: &mut Vec<AwaitedRank>) {
    let Some(carrier) = shared.group.members.iter().position(|member| *member == 0) else { return };
    let carrier = carrier as u32;
    waiting_for.retain(|awaited| awaited.rank != carrier);
    let text =
        "it is silent, and status requests to all other ranks go through it: look there first".to_owned();
    waiting_for.insert(0, AwaitedRank::new(carrier, PeerState::Silent, text));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::StatusBoard;

    #[test]
    fn a_path_that_loses_long_packets_is_told_from_a_cut_one() {
        let mut waiting_for = Vec::new();
        let cuts = [(0, 2, None), (0, 1, Some(9000)), (3, 0, None)];
        let cuts = cuts.map(|(from, to, lost_packet_bytes)| Cut { from, to, lost_packet_bytes });
        put_cuts_first(&mut waiting_for, &cuts, 0);
        let text = |rank| waiting_for.iter().find(|awaited| awaited.rank == rank).map(|found| &*found.detail);
        assert_eq!(
            text(2),
            Some("it does not acknowledge data from rank 0: check the network between the two")
        );
        assert_eq!(
            text(3),
            Some("its data for rank 0 is not acknowledged: check the network between the two")
        );
        let hole = text(1).expect("a cut");
        assert!(hole.contains("packets of 9000 bytes from rank 0") && hole.contains("MTU"), "{hole}");
    }

    /// Calls 5 and 6 were started, and 6 is over.
    #[test]
    fn a_rank_that_waits_in_an_earlier_call_than_its_last_holds_nobody_up() {
        let label = crate::call::CallLabel { kind: 1, count: 1 };
        let board = StatusBoard::default();
        board.start(5, label);
        board.start(6, label);
        board.finish(6);
        let status = || board.status();
        assert!(holds_up(Some(&status()), Some(7)), "it computes");
        board.waits_in(Some("#5 all_reduce".to_owned()));
        assert!(!holds_up(Some(&status()), Some(7)), "it waits for another rank");
        assert!(is_outside(Some(&status()), Some(7)));
        assert!(holds_up(None, Some(7)) && holds_up(None, None), "a silent rank");
        assert!(!is_outside(Some(&status()), Some(6)), "it has come");
        assert!(!is_outside(Some(&status()), None), "a message has no number");
    }
}
