use super::*;
use crate::Cluster;

fn right(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// The state of step 7: three parts, of which one is empty and the last chunk of another is short.
fn parts() -> (Vec<f32>, Vec<u64>, Vec<u8>) {
    ((0..1000).map(|i| i as f32 * 0.5).collect(), (0..300).collect(), Vec::new())
}

type Held = (Vec<f32>, Vec<u64>, Vec<u8>);

fn share(
    comm: &Communicator,
    state: &mut State,
    held: &mut Held,
    hash: &dyn Fn(&[u8]) -> Hash,
) -> Result<Shared> {
    let (weights, moments, empty) = held;
    let mut parts = [Part::new("weights", weights), Part::new("empty", empty), Part::new("moments", moments)];
    state.share_hashed(comm, &mut parts, 256, hash)
}

fn nothing() -> Held {
    let (weights, moments, empty) = parts();
    (vec![-1.0; weights.len()], vec![99; moments.len()], empty)
}

#[test]
fn all_who_lack_the_state_get_it_from_all_who_have_it() {
    for holders in [&[0_u32][..], &[1, 2], &[0, 2, 3, 4]] {
        let told = Cluster::local(5, |comm| {
            let has = holders.contains(&comm.rank());
            let (mut state, mut held) = if has { (State::at(7), parts()) } else { (State::at(5), nothing()) };
            let shared = share(&comm, &mut state, &mut held, &right).unwrap();
            assert_eq!((state.version(), held), (Some(7), parts()));
            // Sharing again costs nothing, and on another communicator all ranks have the state.
            assert_eq!(share(&comm, &mut state, &mut nothing(), &right).unwrap(), Shared::default());
            let next = comm.shrink().unwrap();
            assert_eq!(share(&next, &mut state, &mut parts(), &right).unwrap(), Shared::default());
            shared
        })
        .unwrap();
        let bytes = 4000 + 2400;
        for (rank, shared) in told.iter().enumerate() {
            let has = holders.contains(&(rank as u32));
            assert_eq!(shared.received, if has { 0 } else { bytes }, "{holders:?}");
            assert_eq!(shared.sent > 0, has, "each of {holders:?} sends some");
        }
        assert_eq!(told.iter().map(|shared| shared.sent).sum::<u64>(), (5 - holders.len() as u64) * bytes);
    }
}

#[test]
fn only_what_differs_is_sent() {
    Cluster::local(2, |comm| {
        let mut held = parts();
        let mut state = State::at(7);
        if comm.rank() == 1 {
            // State of the step before, in which one element of one chunk differs.
            state = State::at(6);
            held.1[10] = 3;
        }
        let shared = share(&comm, &mut state, &mut held, &right).unwrap();
        assert_eq!((held, shared.received), (parts(), if comm.rank() == 1 { 256 } else { 0 }));
    })
    .unwrap();
}

#[test]
fn what_fails_its_hash_is_fetched_from_another() {
    Cluster::local(3, |comm| {
        let (mut state, mut held) = match comm.rank() {
            0 => (State::at(1), parts()),
            1 => {
                // This rank's memory is corrupted.
                let mut held = parts();
                held.0[0] = 12345.0;
                (State::at(1), held)
            }
            _ => (State::new(), nothing()),
        };
        // Rank 0 sends the first chunk, and rank 1 has made another hash of it.
        let shared = share(&comm, &mut state, &mut held, &right).unwrap();
        if comm.rank() == 2 {
            assert_eq!((shared.refetched, shared.received), (vec![0], 4000 + 2400 + 256));
            assert_eq!(held.1, parts().1);
        }
    })
    .unwrap();
}

#[test]
fn what_fails_its_hash_whoever_sends_it_is_an_error_on_all_ranks() {
    Cluster::local(3, |comm| {
        let has = comm.rank() < 2;
        let (mut state, mut held) = if has { (State::at(1), parts()) } else { (State::new(), nothing()) };
        // As if the bytes were corrupted on the way.
        let broken = |bytes: &[u8]| if has { [7; HASH_BYTES] } else { right(bytes) };
        let error = share(&comm, &mut state, &mut held, &broken).unwrap_err();
        let told =
            "bytes 0 to 256 of weights do not match their hash on rank 2, whichever rank sends them: ranks \
             [0, 1] have";
        assert!(error.to_string().contains(told) && !error.is_fatal(), "{error}");
        assert_eq!(state.version(), has.then_some(1), "nobody takes for a state what is none");
        // A later attempt succeeds.
        share(&comm, &mut state, &mut held, &right).unwrap();
        assert_eq!((state.version(), held), (Some(1), parts()));
    })
    .unwrap();
}

#[test]
fn misuse_is_an_error_on_all_ranks() {
    Cluster::local(3, |comm| {
        let mut data = [0_u8; 4];
        let names = if comm.rank() == 1 { "moments" } else { "weights" };
        let error = State::at(0).share(&comm, &mut [Part::new(names, &mut data)]).unwrap_err();
        assert!(error.to_string().contains("ranks 0 and 1 have registered different parts"), "{error}");
        assert!(error.to_string().contains(&format!("this rank has {names} of 4 bytes")), "{error}");
        let len = if comm.rank() == 2 { 3 } else { 4 };
        let error = State::at(0).share(&comm, &mut [Part::new("weights", &mut data[..len])]).unwrap_err();
        assert!(error.to_string().contains("ranks 0 and 2 have"), "{error}");
        let error = State::new().share(&comm, &mut [Part::new("weights", &mut data)]).unwrap_err();
        assert!(error.to_string().contains("no rank has the state"), "{error}");
        State::at(0).share(&comm, &mut [Part::new("weights", &mut data)]).unwrap();
    })
    .unwrap();
}

#[test]
fn a_repeat_does_nothing_on_any_rank_whatever_was_shared_in_between() {
    Cluster::local(3, |comm| {
        let (mut state, mut held) = (State::at(7), parts());
        let mut share = |comm: &Communicator| share(comm, &mut state, &mut held, &right).map(drop);
        share(&comm).unwrap();
        let pair = (comm.rank() < 2).then(|| comm.group(&[0, 1]).unwrap());
        pair.as_ref().map_or(Ok(()), &mut share).unwrap();
        share(&comm).unwrap();
        comm.barrier().unwrap();
        // Communicators that are gone are forgotten.
        drop(pair);
        share(&comm.duplicate(comm.config().clone()).unwrap()).unwrap();
        share(&comm.duplicate(comm.config().clone()).unwrap()).unwrap();
        assert!(state.settled.len() <= 2, "{}", state.settled.len());
    })
    .unwrap();
}

#[test]
fn a_rank_that_has_lost_its_state_does_not_take_an_earlier_success_for_it() {
    Cluster::local(2, |comm| {
        let (mut state, mut held) = (State::at(7), parts());
        share(&comm, &mut state, &mut held, &right).unwrap();
        if comm.rank() == 0 {
            state.advance();
        }
        let broken = |bytes: &[u8]| if comm.rank() == 0 { [7; HASH_BYTES] } else { right(bytes) };
        let other = comm.duplicate(comm.config().clone()).unwrap();
        share(&other, &mut state, &mut held, &broken).unwrap_err();
        let again = share(&comm, &mut state, &mut held, &right);
        match comm.rank() {
            0 => assert_eq!(again.unwrap(), Shared::default()),
            _ => assert!(again.unwrap_err().to_string().contains("lost its state"), "rank 1 has none"),
        }
        comm.barrier().unwrap();
    })
    .unwrap();
}
