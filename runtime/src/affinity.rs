//! The processor that a rank returns to: on a host with more ranks than processors, and where the scheduler has put two
//! ranks on one processor although there is one for each.
//!
//! Schedulers choose a processor for a thread when it wakes up. Ranks that share processors hardly sleep: they yield to
//! each other, and a thread that only yields stays on its processor, in the real-time classes for good. Placement is
//! therefore random, and three of four ranks on two processors often share one. Everything then takes up to 1.6 times
//! as long (loopback TCP, all-reduce of 1 KiB, all-to-all of 8 bytes, barrier: 47, 42 and 40 us instead of 30, 30 and
//! 29).
//!
//! Each of these ranks is therefore assigned a processor to return to. It is not bound to it: its affinity mask is
//! narrowed and restored at once, so the scheduler may move the thread at any time, and threads that it starts inherit
//! the original mask. If another program keeps that processor busy, a rank that is held up there leaves. Ranks in the
//! real-time classes do not leave: no thread of another class can take a processor from them, so only a rank that
//! computes can have held them up, and a rank that leaves stays away. Otherwise, all-reduces of 32 MiB with 8 ranks on
//! 2 processors would take 1.1 to 1.25 times as long, with five ranks on one processor.
//!
//! If the ranks of more hosts than processors share the processors, and messages between them take longer than the
//! processors' own work on them, the ranks stay where the scheduler puts them: see docs/measurements.md, "Hosts that share
//! processors". They mostly wait for the network, whose own threads also need a processor, and the scheduler moves a
//! rank away from these when the rank wakes up. At times, such ranks therefore sleep where they would yield.

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::mix::mix;
use crate::wait::{Contention, usable_processors};

/// Longest delay that other ranks cause. Returning takes 10 to 30 us, and the other ranks of a short call take about as
/// long for their turns. A foreign process keeps a processor for a time slice or until the next tick, which is 1 to 4
/// ms.
pub(crate) const GAP_MAX: Duration = Duration::from_millis(1);

/// Round trip between hosts from which they wait for the network rather than for each other's processor. Between
/// containers of one machine it takes 20 to 40 us, all of it work of the processors.
const NETWORK_ROUND_TRIP: Duration = Duration::from_micros(60);

/// Part of every [`RESETTLED_EVERY`] in which ranks that the scheduler places sleep where they would yield. An all-gather
/// of 4 KiB on 4 hosts takes 121 us where all ranks share one processor and the network has the other, and up to 460 us
/// otherwise.
const RESETTLES_FOR: Duration = Duration::from_millis(3);

const RESETTLED_EVERY: Duration = Duration::from_millis(10);

/// Time for which a rank stays away after it was held up. The time doubles on each repetition until there has been
/// calm.
const BACK_OFF_MIN: Duration = Duration::from_millis(10);

/// Longest back-off.
const BACK_OFF_MAX: Duration = Duration::from_secs(10);

/// Time after a back-off without being held up, after which the next one is the shortest again.
const CALM_AFTER: Duration = Duration::from_secs(1);

/// Returns a digest of the processors on which a rank of this host may run: equal digests mean the same processors.
/// Containers and network namespaces of one machine share its processors, although they are different hosts to each
/// other; but a container with a quota has its own share.
pub(crate) fn processors_digest(host_key: u64) -> u64 {
    let own = processors();
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let machine = boot.into_iter().fold(0, |digest, byte| mix(digest ^ u64::from(byte)));
    // Without a boot id, the machine is unknown.
    let shares = machine != 0 && usable_processors() == own.len();
    let owner = if shares { machine } else { mix(host_key) };
    own.into_iter().fold(owner, |digest, processor| mix(digest ^ (processor as u64 + 1)))
}

/// A set of processors, 64 to a word.
pub(crate) type ProcessorSet = Vec<u64>;

/// Returns the processors of the calling thread's affinity mask as a set; empty if the mask cannot be read.
pub(crate) fn processor_set() -> ProcessorSet {
    let mut set = ProcessorSet::new();
    for processor in processors() {
        let word = processor / 64;
        set.resize(set.len().max(word + 1), 0);
        set[word] |= 1 << (processor % 64);
    }
    set
}

/// The processor of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assigned {
    processor: usize,
    /// Whether there are more ranks than processors.
    is_shared: bool,
    /// Whether these ranks are of more hosts than there are processors.
    has_many_hosts: bool,
}

/// Ranks that may run on the same processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharers {
    pub(crate) ranks: usize,
    /// Number of their hosts.
    pub(crate) hosts: usize,
}

/// Returns the processor for rank number `place` of those that may run on the same processors as the calling thread.
/// `None` if there is no choice.
pub(crate) fn assign(place: usize, sharers: Sharers) -> Option<Assigned> {
    deal(&processors(), place, sharers)
}

fn deal(processors: &[usize], place: usize, sharers: Sharers) -> Option<Assigned> {
    let count = processors.len();
    (count > 1).then(|| Assigned {
        processor: processors[place % count],
        is_shared: sharers.ranks > count,
        has_many_hosts: sharers.hosts > count,
    })
}

/// Foreign contention as calls have observed it. The thread that kept the processor from a long call may have been a
/// rank that copies, so short calls judge for themselves. Before they did, an all-gather of 8 bytes among 2 hosts x 4
/// ranks on 2 processors took six times as long after all-reduces of 16 MiB.
#[derive(Debug)]
pub(crate) struct Contentions {
    by_short: Contention,
    by_long: Contention,
}

impl Default for Contentions {
    fn default() -> Self {
        Self { by_short: Contention::NONE_BY_SHORT_CALLS, by_long: Contention::NONE }
    }
}

impl Contentions {
    /// Returns the contention that a call assumes at its start.
    pub(crate) fn of(&self, is_short: bool, now: impl FnOnce() -> Instant) -> Contention {
        if is_short {
            self.by_short.in_question(self.by_long, now)
        } else {
            self.by_long.or_later(self.by_short)
        }
    }

    /// Keeps the contention that a call assumes at its end.
    pub(crate) const fn keep(&mut self, is_short: bool, contention: Contention) {
        if is_short { self.by_short = contention } else { self.by_long = contention }
    }
}

/// Processor of a rank, and what it knows of contention there.
#[derive(Debug)]
pub(crate) struct Processor {
    /// `None` if there is only one.
    pub(crate) affinity: Option<SoftAffinity>,
    pub(crate) contention: Contentions,
    /// Since when the scheduler alone places the rank; `None` if the rank has a processor to return to, or needs none.
    left_to_scheduler: Option<Instant>,
}

impl Processor {
    pub(crate) fn new(affinity: Option<SoftAffinity>) -> Self {
        Self { affinity, contention: Contentions::default(), left_to_scheduler: None }
    }

    /// Takes note of the round trip between hosts.
    pub(crate) fn learn(&mut self, round_trip_seconds: f64, now: Instant) {
        let is_far = round_trip_seconds >= NETWORK_ROUND_TRIP.as_secs_f64();
        if is_far && self.affinity.take_if(|affinity| affinity.assigned.has_many_hosts).is_some() {
            self.left_to_scheduler = Some(now);
        }
    }

    /// Returns whether the rank is to sleep where it would yield, so that the scheduler can move it.
    pub(crate) fn resettles(&self, now: impl FnOnce() -> Instant) -> bool {
        let age = self.left_to_scheduler.map(|since| now().saturating_duration_since(since));
        age.is_some_and(|age| age.as_micros() % RESETTLED_EVERY.as_micros() < RESETTLES_FOR.as_micros())
    }
}

/// The processor to which a rank returns, and whether returning is worthwhile.
#[derive(Debug)]
pub(crate) struct SoftAffinity {
    assigned: Assigned,
    /// Length of the last back-off.
    back_off: Duration,
    away_until: Option<Instant>,
    /// The mask that was restored last as a request of the program, or of whatever started it.
    requested: Option<CpuSet>,
}

impl SoftAffinity {
    pub(crate) fn new(assigned: Assigned) -> Self {
        Self { assigned, back_off: Duration::ZERO, away_until: None, requested: None }
    }

    /// Returns whether there are more ranks than processors, so that the rank returns in every wait. Otherwise, it does so
    /// only where it seems to share a processor with a peer.
    pub(crate) fn is_shared(&self) -> bool {
        self.assigned.is_shared
    }

    /// Moves the calling thread to the processor, if it is elsewhere, may run there, and has not been held up lately.
    pub(crate) fn come_back(&mut self) {
        if here() == Some(self.assigned.processor) {
            return;
        }
        let start = Instant::now();
        if self.away_until.is_none_or(|until| start >= until) && self.travel(true) {
            let end = Instant::now();
            if end - start > GAP_MAX {
                self.held_up(end);
            }
        }
    }

    /// Handles a rank that gave its processor to others and got it back late: the rank leaves, and stays away for a
    /// while.
    pub(crate) fn held_up(&mut self, now: Instant) {
        if !is_realtime() && self.note(now) {
            self.travel(false);
        }
    }

    /// Begins a back-off, unless one is in progress. Returns whether it did.
    fn note(&mut self, now: Instant) -> bool {
        if self.away_until.is_some_and(|until| now < until) {
            return false;
        }
        let again = self.away_until.is_some_and(|until| now < until + CALM_AFTER);
        self.back_off = if again { (2 * self.back_off).min(BACK_OFF_MAX) } else { BACK_OFF_MIN };
        self.away_until = Some(now + self.back_off);
        true
    }

    /// Moves the thread to the processor, or away from it. Nothing depends on the move; if the system does not allow
    /// it, nothing changes.
    fn travel(&mut self, to_it: bool) -> bool {
        // The thread may have been bound in the meantime.
        let Ok(mask) = sched_getaffinity(None) else { return false };
        let mut narrow = if to_it { CpuSet::new() } else { mask };
        if to_it {
            narrow.set(self.assigned.processor);
        } else {
            narrow.unset(self.assigned.processor);
        }
        if !mask.is_set(self.assigned.processor)
            || narrow.count() == 0
            || sched_setaffinity(None, &narrow).is_err()
        {
            return false;
        }
        self.restore(mask);
        true
    }

    /// Restores the mask of the thread. The kernel keeps a mask that is set as a request, and intersects it with later
    /// cpusets (Linux 6.2). If the thread had none, it therefore gets back a request for all processors. Otherwise, it
    /// would keep to today's processors after its cpuset has shrunk and grown again.
    fn restore(&mut self, mask: CpuSet) {
        let is_cpuset = || sched_getaffinity(None).is_ok_and(|all| all == mask);
        if self.requested != Some(mask) && sched_setaffinity(None, &everywhere()).is_ok() && is_cpuset() {
            return;
        }
        self.requested = Some(mask);
        let _ = sched_setaffinity(None, &mask);
    }
}

/// Returns the mask of all processors that a mask can name.
fn everywhere() -> CpuSet {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
    all
}

/// Returns the processor on which the calling thread runs. It does not use rustix, which panics where the vDSO lacks
/// the function, as in user-mode Linux.
fn here() -> Option<usize> {
    // SAFETY: the call takes no arguments and changes nothing.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Returns whether the calling thread is in a real-time class. Returns false where the C library does not tell, as in
/// musl.
fn is_realtime() -> bool {
    // SAFETY: the call asks about the calling thread, and changes nothing.
    let class = unsafe { libc::sched_getscheduler(0) };
    class >= 0 && matches!(class & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR)
}

/// Returns the processors of the calling thread's affinity mask; empty if the mask cannot be read.
fn processors() -> Vec<usize> {
    let Ok(mask) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|processor| mask.is_set(*processor)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(processor: usize) -> Assigned {
        Assigned { processor, is_shared: true, has_many_hosts: false }
    }

    #[test]
    fn processors_are_dealt_out_in_turn_where_they_are_shared() {
        let assigned = |processors: &[usize], ranks| {
            (0..ranks).map(|place| deal(processors, place, Sharers { ranks, hosts: 1 })).collect()
        };
        let of = |processor, is_shared| Some(Assigned { processor, is_shared, has_many_hosts: false });
        let dealt: Vec<_> = assigned(&[3, 5], 4);
        assert_eq!(dealt, [of(3, true), of(5, true), of(3, true), of(5, true)]);
        let own: Vec<_> = assigned(&[3, 5, 6], 2);
        let only_one: Vec<_> = assigned(&[3], 2);
        assert_eq!((own, only_one), (vec![of(3, false), of(5, false)], vec![None, None]));
    }

    #[test]
    fn ranks_of_many_hosts_stay_where_the_scheduler_puts_them_if_they_wait_for_a_network() {
        let returns = |hosts, round_trip_seconds| {
            let assigned = deal(&[3, 5], 1, Sharers { ranks: 4, hosts });
            let mut processor = Processor::new(assigned.map(SoftAffinity::new));
            processor.learn(round_trip_seconds, Instant::now());
            processor.affinity.is_some()
        };
        assert!(!returns(4, 120e-6) && !returns(3, 20e-3));
        assert!(returns(4, 22e-6), "the round trip is work of the processors");
        assert!(returns(2, 120e-6), "there is a processor for each host");
    }

    #[test]
    fn ranks_that_the_scheduler_places_sleep_from_time_to_time() {
        let begin = Instant::now();
        let resettles = |hosts, after| {
            let assigned = deal(&[3, 5], 1, Sharers { ranks: 4, hosts });
            let mut processor = Processor::new(assigned.map(SoftAffinity::new));
            processor.learn(120e-6, begin);
            processor.resettles(|| begin + after)
        };
        for period in 0..3 {
            let from = period * RESETTLED_EVERY;
            assert!(resettles(4, from) && resettles(4, from + RESETTLES_FOR / 2));
            assert!(!resettles(4, from + RESETTLES_FOR) && !resettles(2, from));
        }
    }

    #[test]
    fn coming_back_moves_the_thread_and_leaves_its_mask_alone() {
        let mask = sched_getaffinity(None).expect("a mask");
        for processor in processors() {
            let mut affinity = SoftAffinity::new(shared(processor));
            assert!(affinity.travel(true));
            assert_eq!(sched_getaffinity(None).expect("a mask"), mask);
            affinity.come_back();
        }
    }

    #[test]
    fn a_thread_that_the_program_has_bound_stays_bound() {
        let [first, _, ..] = processors()[..] else {
            eprintln!("skipped: a single processor");
            return;
        };
        let bound = std::thread::spawn(move || {
            let mut mask = CpuSet::new();
            mask.set(first);
            // As after travels of a thread that was not bound.
            let mut affinity = SoftAffinity::new(shared(first));
            assert!(affinity.travel(true) && affinity.requested.is_none());
            sched_setaffinity(None, &mask).expect("one of this thread's processors");
            for _ in 0..2 {
                assert!(affinity.travel(true));
                assert_eq!((sched_getaffinity(None), affinity.requested), (Ok(mask), Some(mask)));
            }
        });
        bound.join().expect("no panic");
    }

    /// As where a pool of processors shrinks and grows again.
    #[test]
    fn a_thread_that_has_come_back_follows_its_cpuset() {
        const HIERARCHY: &str = "/sys/fs/cgroup/cpuset";
        let group = format!("{HIERARCHY}/kolo-test-{}", std::process::id());
        let [first, second, ..] = processors()[..] else {
            eprintln!("skipped: a single processor");
            return;
        };
        let put = |file: &str, value: &str| std::fs::write(format!("{group}/{file}"), value);
        let memory = std::fs::read_to_string(format!("{HIERARCHY}/cpuset.mems"));
        let made = memory.and_then(|memory| {
            std::fs::create_dir(&group)?;
            put("cpuset.mems", memory.trim())?;
            put("cpuset.cpus", &first.to_string())
        });
        if let Err(error) = made {
            eprintln!("skipped: no group with a cpuset can be made for a thread: {error}");
            let _ = std::fs::remove_dir(&group);
            return;
        }
        let found = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let own = rustix::thread::gettid().as_raw_nonzero().to_string();
                put("tasks", &own).expect("a new group");
                assert!(SoftAffinity::new(shared(first)).travel(true));
                put("cpuset.cpus", &format!("{first},{second}")).expect("more processors");
                let found = processors();
                let _ = std::fs::write(format!("{HIERARCHY}/tasks"), own);
                found
            });
            thread.join()
        });
        let _ = std::fs::remove_dir(&group);
        assert_eq!(found.expect("no panic"), [first, second]);
    }

    #[test]
    fn a_thread_that_may_not_run_there_stays() {
        std::thread::spawn(|| {
            let here = processors()[0];
            let mut only = CpuSet::new();
            only.set(here);
            sched_setaffinity(None, &only).expect("own processor");
            assert!(
                !SoftAffinity::new(shared(here + 1)).travel(true)
                    && !SoftAffinity::new(shared(here)).travel(false)
            );
            assert_eq!(sched_getaffinity(None).expect("a mask"), only);
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn a_rank_that_is_held_up_stays_away_longer_each_time_until_there_is_calm() {
        let mut affinity = SoftAffinity::new(shared(0));
        let start = Instant::now();
        assert!(affinity.note(start));
        assert_eq!(affinity.away_until, Some(start + BACK_OFF_MIN));
        assert!(!affinity.note(start + BACK_OFF_MIN / 2));
        assert_eq!(affinity.away_until, Some(start + BACK_OFF_MIN));
        let again = start + 2 * BACK_OFF_MIN;
        assert!(affinity.note(again));
        assert_eq!(affinity.away_until, Some(again + 2 * BACK_OFF_MIN));
        let later = again + 2 * CALM_AFTER;
        assert!(affinity.note(later));
        assert_eq!(affinity.away_until, Some(later + BACK_OFF_MIN));
    }
}
