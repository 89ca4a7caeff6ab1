//! Newcomers fetch a copy of the members' state while the members go on, and then join: see `kolo::state`.

use std::sync::Mutex;
use std::time::Duration;

use kolo::state::{Part, Shared, State};
use kolo::{Communicator, Error, Invitation, JoinFailure, ReduceOp, Survivors};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::within;

const LIMIT: Duration = Duration::from_secs(60);

/// Number of bytes that stay unchanged, and number of weights that each step changes.
const TABLE: usize = 3 << 20;
const WEIGHTS: usize = 1000;
const BYTES: u64 = 4 * (TABLE + WEIGHTS) as u64;

struct Model {
    table: Vec<u32>,
    weights: Vec<f32>,
}

impl Model {
    fn first() -> Self {
        Self {
            table: (0..TABLE as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect(),
            weights: weights(0),
        }
    }

    fn nothing() -> Self {
        Self { table: vec![0; TABLE], weights: vec![-1.0; WEIGHTS] }
    }

    fn parts(&mut self) -> [Part<'_>; 2] {
        [Part::new("table", &mut self.table), Part::new("weights", &mut self.weights)]
    }

    /// Panics unless this is the model of that step.
    fn check(&self, version: u64) {
        assert_eq!(self.weights, weights(version), "step {version}");
        assert!(self.table.iter().zip(0_u32..).all(|(of, i)| *of == i.wrapping_mul(2_654_435_761)));
    }
}

fn weights(version: u64) -> Vec<f32> {
    (0..WEIGHTS).map(|i| (i as u64 * 7 + version * 13) as f32).collect()
}

/// Runs one step of a rank that has the state by its end; returns the outcome of sharing it.
fn step(group: &mut Survivors, state: &mut State, model: &mut Model) -> kolo::Result<Shared> {
    let shared = group.run(|comm| {
        let shared = state.share(comm, &mut model.parts())?;
        comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum)?;
        Ok(shared)
    })?;
    let version = state.version().expect("shared");
    model.check(version);
    model.weights.copy_from_slice(&weights(version + 1));
    state.advance();
    Ok(shared)
}

/// Does a member's work until there are `ranks` members, including the newcomer, and for three more steps.
/// `goes_on` learns whether a copy was taken.
fn work_until(comm: Communicator, ranks: u32, goes_on: impl Fn(bool) -> bool) {
    let (mut group, mut state, mut model) = (Survivors::new(comm).up_to(ranks), State::at(0), Model::first());
    let mut rest = 3;
    while rest > 0 {
        group.admit().expect("members live");
        let has_offered = state.offer(&group, &model.parts());
        if !goes_on(has_offered) {
            return;
        }
        step(&mut group, &mut state, &mut model).expect("those that live go on");
        rest -= u32::from(group.comm().world_size() == ranks && group.comm().ranks_before().contains(&None));
    }
    assert!(!state.is_offering(), "nobody fetches any more");
}

/// Runs `ranks` members, and a newcomer with the invitation of rank 1.
fn beside<R: Send>(
    arrangement: Arrangement,
    ranks: u32,
    member: impl Fn(Communicator) + Sync,
    newcomer: impl FnOnce(Invitation, kolo::Config) -> R + Send,
) -> R {
    let letterbox = Mutex::new(None);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            loop {
                if let Some(invitation) = letterbox.lock().expect("no panic").take() {
                    return newcomer(invitation, arrangement.config(ranks));
                }
                std::thread::yield_now();
            }
        });
        arrangement.run(ranks, |comm| {
            if comm.rank() == 1 {
                *letterbox.lock().expect("no panic") = Some(comm.accept().expect("a listener"));
            }
            member(comm);
        });
        waiting.join().expect("the newcomer")
    })
}

/// Fetches the state, joins, and makes three steps with the others.
fn fetch_and_join(invitation: Invitation, config: kolo::Config, ranks: u32) {
    let (mut state, mut model) = (State::new(), Model::nothing());
    let fetched = state.fetch(&invitation, &mut model.parts(), LIMIT).expect("the members offer it");
    let version = state.version().expect("it was fetched");
    model.check(version);
    assert_eq!(fetched.received, BYTES, "each chunk once");
    assert!(fetched.refetched.is_empty());
    let joined = Communicator::builder().config(config).invitation(invitation).connect();
    let mut group = Survivors::new(joined.expect("a place")).up_to(ranks);
    for number in 0..3 {
        group.admit().expect("members live");
        let _ = state.offer(&group, &model.parts());
        let shared = step(&mut group, &mut state, &mut model).expect("all live");
        let expected = if number == 0 { 4 * WEIGHTS as u64 } else { 0 };
        assert_eq!(shared.received, expected, "what has changed since, and no more");
    }
    assert!(state.version() > Some(version + 3), "the members have gone on meanwhile");
}

#[test]
fn a_newcomer_fetches_a_copy_while_the_members_go_on() {
    for arrangement in [Arrangement::Exchange, Arrangement::Tcp, Arrangement::Hosts(2)] {
        within(LIMIT, "fetch", move || {
            beside(
                arrangement,
                3,
                |comm| work_until(comm, 4, |_| true),
                |invitation, config| fetch_and_join(invitation, config, 4),
            );
        });
    }
}

/// The members have agreed that a newcomer asks, but its invitation names others.
#[test]
fn a_member_to_which_no_newcomer_has_connected_makes_no_copy() {
    Arrangement::Exchange.run(2, |comm| {
        let (mut state, mut model) = (State::at(0), Model::first());
        assert!(!state.offer_if(&comm, true, &model.parts()));
    });
}

#[test]
fn what_a_member_that_leaves_has_not_sent_comes_from_the_others() {
    within(LIMIT, "a source leaves", || {
        let is_offered = std::sync::atomic::AtomicBool::new(false);
        beside(
            Arrangement::Exchange,
            3,
            |comm| {
                let leaves = comm.rank() == 2;
                // One of three members has left when the newcomer joins.
                work_until(comm, 3, |has_offered| {
                    let is_offered = is_offered.fetch_or(has_offered, std::sync::atomic::Ordering::Relaxed);
                    !(leaves && (has_offered || is_offered))
                });
            },
            |invitation, config| fetch_and_join(invitation, config, 3),
        );
    });
}

#[test]
fn a_newcomer_that_does_not_fit_is_told_so_and_leaves_no_copy_behind() {
    within(LIMIT, "other parts", || {
        let gone = std::sync::atomic::AtomicBool::new(false);
        let is_gone = || gone.load(std::sync::atomic::Ordering::Relaxed);
        beside(
            Arrangement::Exchange,
            2,
            |comm| {
                let (mut group, mut state, mut model) = (Survivors::new(comm), State::at(0), Model::first());
                let mut all_gone = [0_u8];
                while all_gone == [0] {
                    let _ = state.offer(&group, &model.parts());
                    step(&mut group, &mut state, &mut model).expect("all live");
                    let own = [u8::from(is_gone() && !state.is_offering())];
                    group.all_reduce(&own, &mut all_gone, ReduceOp::Min).expect("all live");
                }
            },
            |invitation, _| {
                let mut other = [0_u8; 10];
                let mut state = State::new();
                let error = state
                    .fetch(&invitation, &mut [Part::new("other", &mut other)], LIMIT)
                    .expect_err("it differs");
                assert!(
                    matches!(&error, Error::Usage { problem, .. } if problem.contains("different parts"))
                        && error.to_string().starts_with("a newcomer, fetch: "),
                    "{error}"
                );
                assert_eq!(state.version(), None);
                gone.store(true, std::sync::atomic::Ordering::Relaxed);
            },
        );
    });
}

#[test]
fn members_that_offer_nothing_cost_the_newcomer_its_time_limit() {
    within(LIMIT, "no offer", || {
        let over = std::sync::atomic::AtomicBool::new(false);
        beside(
            Arrangement::Exchange,
            2,
            |comm| {
                let mut group = Survivors::new(comm);
                let mut all = [0_u8];
                while all == [0] {
                    let own = [u8::from(over.load(std::sync::atomic::Ordering::Relaxed))];
                    group.all_reduce(&own, &mut all, ReduceOp::Min).expect("all live");
                }
            },
            |invitation, _| {
                let (mut state, mut model) = (State::new(), Model::nothing());
                let error = state
                    .fetch(&invitation, &mut model.parts(), Duration::from_millis(300))
                    .expect_err("none");
                assert!(matches!(error, Error::Join { kind: JoinFailure::Invitation, .. }), "{error}");
                assert!(error.to_string().contains("no member offered its state in time"), "{error}");
                over.store(true, std::sync::atomic::Ordering::Relaxed);
            },
        );
    });
}
