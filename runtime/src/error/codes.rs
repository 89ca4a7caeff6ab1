//! The stable code of each error, and its explanation.
//!
//! A code has the same meaning in all versions: codes may be added, but never reused. Its first two digits denote the
//! kind of error. `kolo explain-error` prints one explanation. `docs/troubleshooting.md` has a table of all codes,
//! which the test `codes` compares with the table here.

use super::{AbortReason, Error, JoinFailure, LossCause, PeerState};

/// Explanation of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The code, such as `K0401`.
    pub code: &'static str,
    /// Description in a few words.
    pub title: &'static str,
    /// Why it happens, in sentences.
    pub cause: &'static str,
    /// Remedies, the most promising one first.
    pub remedies: &'static [&'static str],
    /// The section of `docs/troubleshooting.md` that says more.
    pub section: &'static str,
}

macro_rules! codes {
    ($($name:ident = $code:literal, $title:literal, $section:literal, $cause:literal, [$($remedy:literal),+];)+) => {
        $(const $name: &str = $code;)+

        /// All explanations, in the order of their codes.
        pub const ALL: &[Explanation] = &[$(Explanation {
            code: $code,
            title: $title,
            cause: $cause,
            remedies: &[$($remedy),+],
            section: $section,
        }),+];
    };
}

codes! {
    USAGE = "K0101", "the call is invalid", "Calls that are refused",
        "An argument is wrong: a length, a root, an operator for that type, a communicator of another \
         process. Nothing was sent, and the communicator remains usable.",
        ["Correct the call: the text says what was found and what was expected.",
         "In a forked child, make a new communicator, or start workers with exec or spawn."];
    UNSUPPORTED = "K0102", "the combination is not supported", "Calls that are refused",
        "The operator does not support the type, or the transport does not support the call. Retrying will \
         not help. Nothing was sent.",
        ["Use the alternative that the text names."];
    CONFIGURATION = "K0201", "a setting is missing or wrong", "Settings that are refused",
        "A variable or an option has an invalid value, or one of a set that belongs together is missing.",
        ["Set what the text names; `kolo info` lists all settings with their values.",
         "Look for variables left over from an outer job: env | grep -E 'RANK|MASTER|KOLO'."];
    ABSENT = "K0301", "not all ranks arrived", "Not all ranks arrive",
        "The ranks that the text names were not started, died before they joined, or cannot reach rank 0.",
        ["Read their own output: the first error there is the cause.",
         "Check that their hosts can reach rank 0's address and port.",
         "Raise KOLO_JOIN_TIMEOUT if they are merely slow to start."];
    UNREACHABLE = "K0302", "rank 0 could not be reached", "Rank 0 cannot be reached: address, firewall, port",
        "Rank 0 is not running, or listens elsewhere, or something in between drops the connection.",
        ["Set MASTER_ADDR to an address of rank 0's host as the other hosts see it, not localhost.",
         "Try `nc -vz ADDRESS PORT` from this host while rank 0 waits; open the port in the firewall."];
    PORT = "K0303", "cannot listen on a port", "The port is taken",
        "Another program listens there, perhaps an earlier job; or the port needs privileges; or no port of \
         KOLO_PORT_RANGE is free.",
        ["Find the program with `ss -ltnp`; end it, or use another port (MASTER_PORT, KOLO_RENDEZVOUS, \
          KOLO_PORT_RANGE).",
         "On a single host no port is needed: `kolo run -n 4`, or KOLO_RENDEZVOUS=file:///path."];
    DISAGREEMENT = "K0304", "the ranks do not agree", "The ranks disagree",
        "World size, job, secret or a setting that must be the same differs between ranks, or two processes claim one rank.",
        ["Export the same variables on all hosts: `mpirun -x NAME`, `srun --export=ALL`.",
         "Give each job its own port or file."];
    RENDEZVOUS = "K0305", "the rendezvous does not work", "The launcher is not understood",
        "The file, store or multicast group through which the ranks meet cannot be used, or belongs to \
         another job.",
        ["Use a file that all ranks see and no other job uses, or an address: tcp://host:port.",
         "Where torchrun's variables are set without torchrun, unset TORCHELASTIC_USE_AGENT_STORE and TORCHELASTIC_RUN_ID."];
    NO_TRANSPORT = "K0306", "no transport reaches a rank", "No usable interface",
        "None of the permitted transports can connect the two ranks; the text gives the reason for each.",
        ["Permit more: KOLO_TRANSPORT=auto, and KOLO_SOCKET_IFNAME unset.",
         "Fix the reason that the text gives, such as a limit on open files."];
    VERSION = "K0307", "a rank's message was not understood", "The ranks disagree",
        "The ranks run different versions of Kolo.",
        ["Install the same version on all hosts; `kolo --version` and `Communicator::peers` show it."];
    SURVIVORS = "K0308", "the survivors could not make a communicator", "A rank is lost",
        "Another rank was lost while the survivors were making a new communicator.",
        ["Call shrink or grow again."];
    INTERRUPTED = "K0309", "joining was interrupted", "Not all ranks arrive",
        "The program ended the control plane while a rank was joining.",
        ["Keep the ControlRuntime alive until the communicator is made."];
    INVITATION = "K0310", "an invitation names no reachable member", "Not all ranks arrive",
        "None of the members that the invitation names can be reached: the job or these members have ended, \
         or this host cannot reach theirs.",
        ["Ask a live member for a new invitation, or set KOLO_JOIN to a file that the job keeps up to date."];
    MISMATCH = "K0401", "ranks made different calls", "Mismatched calls",
        "At the same point of the program, two ranks made calls that differ in kind, length, type, operator \
         or root.",
        ["Look for a branch on the rank around a collective, a smaller last batch on some ranks, or a parameter \
          that only some ranks use.",
         "If threads share a communicator, give each thread its own."];
    LOST_CLOSED = "K0501", "a rank ended without a goodbye", "A rank is lost",
        "Its process was killed, crashed, or exited in the middle of the job.",
        ["Read that rank's own output; `dmesg | grep -i 'killed process'` shows whether memory ran out.",
         "To go on without it, see elastic.md: shrink makes a communicator of the live ranks."];
    LOST_SILENT = "K0502", "a rank is silent", "A rank is lost",
        "Nothing has been heard from it for KOLO_DEAD_AFTER, or from its host for KOLO_SILENT_AFTER: the \
         host is down, the network is cut, or the process is stopped.",
        ["Check that its host answers and its process is running.",
         "Raise KOLO_DEAD_AFTER if processes are stopped on purpose, as in a debugger, or if hosts or the \
          network pause."];
    LOST_LEFT = "K0503", "a rank left while it was still needed", "A rank is lost",
        "It dropped its communicator or exited normally while this rank still had calls to make with it.",
        ["Make the same number of calls on all ranks: the usual cause is an extra step or epoch on some \
          ranks."];
    LOST_PANICKED = "K0504", "a thread of a rank panicked", "A rank is lost",
        "A thread of that rank panicked inside a call or while it held a communicator.",
        ["Read the panic in that rank's own output."];
    LOST_PROTOCOL = "K0505", "a rank violated the protocol", "A rank is lost",
        "It sent data that this version of Kolo does not send: it is another program or another version, or \
         the data was corrupted.",
        ["Install the same version on all hosts, and make sure that no other program connects to the job's \
          ports."];
    TIMEOUT = "K0601", "the call timed out", "A rank does not arrive: stragglers and time-outs",
        "The ranks that the text names did not reach this call in time. The text says what each was doing.",
        ["Look at the rank that is not in any call: `py-spy dump --pid`, `gdb -p`.",
         "Raise KOLO_TIMEOUT, or in torch the group's timeout, if the ranks are merely slow."];
    CUT_OFF = "K0602", "data between two ranks is not acknowledged", "Joined, and then no connection: a firewall between the data ports",
        "The call timed out because one rank's data did not reach another: the network between the two does \
         not carry it.",
        ["Check the network between the two ranks: a cable, a firewall, packets larger than the path's MTU.",
         "`kolo doctor` under the job's launcher tests every pair of hosts."];
    ABORTED = "K0701", "a rank gave up on purpose", "A rank is lost",
        "The program called abort; the text gives the reason.",
        ["Look at the rank that the text names."];
    ABORTED_MISMATCH = "K0702", "other ranks made different calls", "Mismatched calls",
        "The calls of two other ranks did not match, which ends the communicator for all ranks.",
        ["See K0401; apply it to the ranks that the text names."];
    ABORTED_TIMEOUT = "K0703", "another call or rank timed out", "A rank does not arrive: stragglers and time-outs",
        "A call timed out on the rank that the text names, which ends the communicator for all ranks.",
        ["See K0601; apply it to the rank that the text names."];
    ABORTED_TRANSPORT = "K0704", "another rank's transport failed", "The network",
        "A connection between two live ranks broke, or an adapter failed.",
        ["See K0801; apply it to the ranks that the text names."];
    ABORTED_COORDINATOR = "K0705", "world rank 0 is lost", "A rank is lost",
        "World rank 0, which runs the control plane, has ended; it may not even be a member of this \
         communicator.",
        ["Read rank 0's own output.", "To go on without it, see elastic.md."];
    ABORTED_DROPPED = "K0706", "the communicator was dropped", "A rank is lost",
        "The communicator was dropped or destroyed while an operation on it was in progress.",
        ["Keep the communicator alive until all its operations have been waited for."];
    ABORTED_REVOKED = "K0707", "the communicator was revoked", "A rank is lost",
        "A rank called revoke, so that the live ranks meet in shrink.",
        ["Call shrink, and continue with the communicator that it returns: see elastic.md."];
    ABORTED_FENCED = "K0708", "the others have gone on without this rank", "A rank is lost",
        "This rank was silent for longer than KOLO_SILENT_AFTER, and the others have agreed that it is lost.",
        ["End this process; it cannot rejoin this group. See elastic.md for how a new process joins."];
    ABORTED_MINORITY = "K0709", "too few ranks answer to go on", "A rank is lost",
        "This rank cannot reach a majority of the ranks: the others may be alive behind a network partition.",
        ["Repair the network, and restart the job from its last checkpoint."];
    TRANSPORT = "K0801", "a transport failed", "The network",
        "A connection broke or an adapter failed, but no rank is known to be lost.",
        ["Look at the network between the two ranks; `kolo doctor` under the job's launcher tests every pair \
          of hosts.",
         "For a failed registration, raise the limit on locked memory: ulimit -l unlimited."];
    SYSTEM = "K0901", "the operating system reported an error", "Limits of the system",
        "A system call failed; the text includes the system's own message.",
        ["Raise the limit that the text names: open files (ulimit -n), locked memory (ulimit -l), processes (ulimit -u)."];
    INTERNAL = "K0902", "a bug in Kolo", "Limits of the system",
        "An assumption inside Kolo turned out to be wrong.",
        ["Please report it, with the text and the output of `kolo info`."];
}

/// The code of [`Error::Usage`], for bindings that detect an invalid call before the runtime does.
pub const OF_USAGE: &str = USAGE;

/// The code of a bug in Kolo itself, such as a panic that a binding has caught.
pub const OF_DEFECT: &str = INTERNAL;

/// Returns the explanation of a code, or `None` for an unknown one. Case does not matter.
#[must_use]
pub fn explanation(code: &str) -> Option<&'static Explanation> {
    ALL.iter().find(|known| known.code.eq_ignore_ascii_case(code))
}

impl Error {
    /// Returns the stable code of this kind of error, such as `K0401`, which also ends the error's text, in brackets.
    /// `kolo explain-error` and [`codes::explanation`](explanation) explain it. Programs should match on the variant
    /// instead.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Usage { .. } => USAGE,
            Self::Unsupported { .. } => UNSUPPORTED,
            Self::Configuration { .. } => CONFIGURATION,
            Self::Join { kind, .. } => match kind {
                JoinFailure::Absent => ABSENT,
                JoinFailure::Unreachable => UNREACHABLE,
                JoinFailure::Port => PORT,
                JoinFailure::Disagreement => DISAGREEMENT,
                JoinFailure::Rendezvous => RENDEZVOUS,
                JoinFailure::NoTransport => NO_TRANSPORT,
                JoinFailure::Version => VERSION,
                JoinFailure::Survivors => SURVIVORS,
                JoinFailure::Interrupted => INTERRUPTED,
                JoinFailure::Invitation => INVITATION,
            },
            Self::Mismatch { .. } => MISMATCH,
            Self::PeerLost { cause, .. } => match cause {
                LossCause::Closed => LOST_CLOSED,
                LossCause::Silent(_) => LOST_SILENT,
                LossCause::Left => LOST_LEFT,
                LossCause::Panicked => LOST_PANICKED,
                LossCause::Protocol => LOST_PROTOCOL,
            },
            Self::Timeout { waiting_for, .. } => match waiting_for.first().map(|awaited| awaited.state) {
                Some(PeerState::CutOff { .. }) => CUT_OFF,
                _ => TIMEOUT,
            },
            Self::Aborted { kind, .. } => match kind {
                AbortReason::Requested => ABORTED,
                AbortReason::Mismatch => ABORTED_MISMATCH,
                AbortReason::Timeout => ABORTED_TIMEOUT,
                AbortReason::Transport => ABORTED_TRANSPORT,
                AbortReason::CoordinatorLost => ABORTED_COORDINATOR,
                AbortReason::Dropped => ABORTED_DROPPED,
                AbortReason::Revoked => ABORTED_REVOKED,
                AbortReason::Fenced => ABORTED_FENCED,
                AbortReason::Minority => ABORTED_MINORITY,
            },
            Self::Transport { .. } => TRANSPORT,
            Self::System { .. } => SYSTEM,
        }
    }
}
