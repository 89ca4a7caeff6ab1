//! The conformance suite: the duties of every transport, as tests that run against any of them.
//!
//! The test file of a transport defines how its endpoints are made, and instantiates the suite:
//!
//! ```ignore
//! struct Tcp;
//! impl Subject for Tcp { /* name, endpoint */ }
//! kolo_transport::conformance!(Tcp);
//! ```
//!
//! Each case becomes a `#[test]`. Sizes come from the endpoint's own limits. A case that needs a capability that the
//! transport lacks prints why it is skipped. Contents are seeded patterns, checked everywhere; memory around and
//! between pieces is guarded. No case waits for a state by sleeping, and each wait has a deadline that turns a hang
//! into a failure whose text says what was awaited.
//!
//! The suite panics when a promise is broken; it is for tests only.

mod allocator;
mod exposed;
mod failure;
mod flow;
mod message;
mod messages;
mod namespaces;
mod packed;
mod pattern;
mod ports;
mod probing;
mod processes;
mod sabotage;
mod short;
mod stage;
mod waiting;
mod world;

use std::time::Duration;

use crate::endpoint::Endpoint;

pub use allocator::CountingAllocator;
pub use namespaces::across_namespaces;
pub use ports::free_port;
pub use processes::across_processes;
pub use sabotage::{Fault, Sabotaged};

/// A transport under test.
pub trait Subject: Sync {
    /// Makes the endpoint of `rank` among `world_size` ranks. Ranks of one job get the same `job`, ranks of other
    /// jobs another one.
    fn endpoint(&self, rank: u32, world_size: u32, job: [u8; 16]) -> Box<dyn Endpoint>;

    /// Returns how long any wait of a case may take before it counts as a hang: far longer than on a busy machine.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Returns the reason if the transport cannot be tested on this machine.
    fn absent(&self) -> Option<String> {
        None
    }

    /// Returns the cases that this transport need not pass, with the reasons.
    fn exemptions(&self) -> &[(&'static str, &'static str)] {
        &[]
    }
}

/// A test of one promise.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name, which is that of the `#[test]`.
    pub name: &'static str,
    /// Runs the test; panics if the promise is broken.
    pub run: fn(&dyn Subject),
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Runs one case by its name.
///
/// # Panics
/// If the promise is broken, or there is no such case.
pub fn run(subject: &dyn Subject, name: &str) {
    if let Some(why) = subject.absent() {
        return skip(&why);
    }
    if let Some((_, why)) = subject.exemptions().iter().find(|(exempt, _)| *exempt == name) {
        skip(why);
        return;
    }
    let case = CASES.iter().find(|case| case.name == name).expect("no such case");
    (case.run)(subject);
}

fn skip(why: &str) {
    println!("skipped: {why}");
}

/// Lists the cases once: as data, and as the macro that makes tests of them.
macro_rules! cases {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        /// All cases.
        pub const CASES: &[Case] =
            &[$($(Case { name: stringify!($name), run: $module::$name }),*),*];
    };
}

cases! {
    messages {
        order,
        zero_length,
        sizes,
        unaligned,
        scatter_gather,
        small_messages_by_the_thousand,
        random_traffic,
        consumers_get_whole_grains,
        one_gigabyte,
        wrong_arguments_are_refused,
    }
    flow {
        many_channels,
        channels_do_not_wait_for_each_other,
        floods_in_both_directions,
        simultaneous_first_messages,
        storm_of_first_messages,
        posted_long_before_the_peer,
        steady_state_does_not_allocate,
        flushed_means_gone,
    }
    failure {
        mismatched_tag,
        mismatched_length,
        abort_gives_all_memory_back,
        abandon_concerns_one_peer,
        peer_lost_in_the_middle,
        peer_lost_is_for_ever,
        done_sends_survive_their_sender,
    }
    probing {
        receives_that_do_not_fit_come_back,
        another_length_comes_back_too,
        receives_can_be_taken_back,
        messages_can_be_matched_by_tag,
        a_probed_message_is_told_and_stays,
        a_probe_can_be_taken_back,
        a_probe_keeps_the_owner_awake,
        a_probe_outlives_its_peer,
    }
    short {
        short_messages,
        short_messages_that_do_not_fit_stay,
        short_messages_wait_their_turn,
        a_probe_outlives_short_messages,
        short_messages_outlive_their_sender,
    }
    exposed {
        exposed_memory_is_got,
        gets_end_with_their_peer,
    }
    packed {
        packed_messages,
        short_messages_are_consumed,
    }
    waiting {
        sleepers_wake_by_descriptor,
        sleepers_wake_by_word,
        sleepers_wake_for_room,
        sleepers_wake_by_any_of_many_channels,
        idle_ends_do_not_hold_up_sleep,
    }
    stage {
        stages_show_what_was_published,
        stages_wait_for_slow_readers,
        stages_wait_for_whom_they_need,
        stages_tell_mismatches,
        sleepers_wake_for_stages,
    }
}

/// Makes a `#[test]` of every case, for the subject that the expression yields.
///
/// A further test checks that no case is missing here.
#[macro_export]
macro_rules! conformance {
    ($subject:expr) => {
        $crate::conformance! { @tests $subject;
            order zero_length sizes unaligned scatter_gather small_messages_by_the_thousand random_traffic
            consumers_get_whole_grains one_gigabyte wrong_arguments_are_refused
            many_channels channels_do_not_wait_for_each_other floods_in_both_directions
            simultaneous_first_messages storm_of_first_messages posted_long_before_the_peer
            steady_state_does_not_allocate flushed_means_gone
            mismatched_tag mismatched_length abort_gives_all_memory_back abandon_concerns_one_peer
            peer_lost_in_the_middle peer_lost_is_for_ever done_sends_survive_their_sender
            receives_that_do_not_fit_come_back another_length_comes_back_too receives_can_be_taken_back
            messages_can_be_matched_by_tag a_probed_message_is_told_and_stays a_probe_can_be_taken_back
            a_probe_keeps_the_owner_awake a_probe_outlives_its_peer
            short_messages short_messages_that_do_not_fit_stay short_messages_wait_their_turn
            a_probe_outlives_short_messages short_messages_outlive_their_sender
            exposed_memory_is_got gets_end_with_their_peer
            packed_messages short_messages_are_consumed
            sleepers_wake_by_descriptor sleepers_wake_by_word sleepers_wake_for_room
            sleepers_wake_by_any_of_many_channels
            idle_ends_do_not_hold_up_sleep
            stages_show_what_was_published stages_wait_for_slow_readers stages_wait_for_whom_they_need
            stages_tell_mismatches sleepers_wake_for_stages
        }
    };
    (@tests $subject:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::conformance::run(&$subject, stringify!($name));
            }
        )*

        #[test]
        fn every_case_is_run() {
            let here = [$(stringify!($name)),*];
            let all: Vec<&str> = $crate::conformance::CASES.iter().map(|case| case.name).collect();
            assert_eq!(&here[..], &all[..]);
        }

        #[test]
        fn across_processes() {
            let path = concat!(module_path!(), "::across_processes");
            $crate::conformance::across_processes(&$subject, path);
        }
    };
}
