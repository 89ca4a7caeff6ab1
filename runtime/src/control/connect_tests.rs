use bytes::Bytes;

use super::super::peers::acceptor::Opening;
use super::super::peers::listener::Locality;
use super::*;
use crate::join::SurvivorRendezvous;

#[tokio::test(flavor = "current_thread")]
async fn survivors_leave_forwarded_messages_to_the_control_plane_before() {
    let listener = Listener::open_for_threads().unwrap();
    let before = JoinSpec::local(2).remove(1);
    let regroup = Regroup {
        listener: Listener::open_for_threads().unwrap().into(),
        at: listener.address().clone(),
        locality: Locality::SameHost,
        regroup_id: [0; 32],
        detours: None,
        began: Instant::now(),
        reach_within: None,
        was_reached: false.into(),
    };
    let locator = Locator::Survivors(SurvivorRendezvous(std::sync::Arc::new(regroup)));
    let after = JoinSpec { locator, ..before.clone() };
    let (pipes, _other_ends): (Vec<_>, Vec<_>) = (0..2).map(|_| tokio::io::duplex(64)).unzip();
    let mut inboxes: Vec<Inbox> = [&before, &after]
        .into_iter()
        .zip(pipes)
        .map(|(spec, pipe)| {
            Inbox::new(spec, tokio::io::split(Box::new(pipe) as BoxedStream).0, Some(&listener))
        })
        .collect();
    let (at, patience) = (listener.address(), Duration::from_secs(20));
    let credentials = at.credentials(&before);
    let mut stream =
        listener.connect(at, Locality::SameHost, credentials, &Opening::Forward, patience).await.unwrap();
    stream.write_all(&encode(&7_u8)).await.unwrap();
    let received = tokio::time::timeout(patience, inboxes[0].next()).await.expect("it is for this one");
    assert!(matches!(received, Received::Forwarded(_)), "{received:?}");
}

/// Plays the coordinator of a rank that waits for others: `far` is the other end of its connection.
async fn waited(
    far: impl AsyncFnOnce(BufReader<tokio::io::DuplexStream>),
) -> Result<Connected, AttemptError> {
    let (spec, mut search) = (JoinSpec::local(2).remove(1), Search::default());
    let (near, stream) = tokio::io::duplex(1 << 12);
    let coordinator = async {
        let mut stream = BufReader::new(stream);
        read_frame(&mut stream, MAX_FRAME_FROM_COORDINATOR).await.unwrap().expect("a hello");
        far(stream).await;
    };
    let rank = search.wait_for_welcome(&spec, Box::new(near), None, OnSilence::Fail);
    let both = async { tokio::join!(rank, coordinator).0 };
    tokio::time::timeout(Duration::from_secs(600), both).await.expect("it neither waits for ever")
}

fn waiting() -> Bytes {
    encode(&FromCoordinator::Waiting { missing: "rank 0".into(), rejected: 0 })
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_rank_that_waits_for_others_shows_that_it_lives() {
    let outcome = waited(async |mut stream| {
        for message in [waiting(), encode(&FromCoordinator::Heartbeat)].iter().cycle().take(100) {
            stream.write_all(message).await.unwrap();
            let answer = read_frame(&mut stream, MAX_FRAME_FROM_COORDINATOR).await.unwrap().unwrap();
            assert_eq!(decode::<ToCoordinator>(&answer).unwrap(), ToCoordinator::Heartbeat);
        }
    });
    assert!(matches!(outcome.await, Err(AttemptError::Retry(_))), "the connection is closed");
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_rank_that_waits_for_others_notices_the_end_of_rank_0s_host() {
    let silence = 2 * Liveness::default().dead_after;
    let outcome = waited(async |mut stream| {
        stream.write_all(&waiting()).await.unwrap();
        tokio::time::sleep(silence).await;
    });
    let Err(AttemptError::Retry(why)) = outcome.await else { panic!("it goes on") };
    assert!(why.contains("silent for 60.0 s"), "{why}");
}

#[test]
fn what_keeps_a_rank_out_is_told_though_the_last_attempt_met_something_else() {
    let mut search = Search::default();
    for cause in
        ["rank 0 has not written it yet", "too many open files", "too many open files", "no such file"]
    {
        search.came_to(cause.to_owned());
    }
    let text = search.out_of_time(&JoinSpec::local(2).remove(1)).to_string();
    assert!(text.contains("the last: no such file; before that: too many open files"), "{text}");
}

/// A stranger answers faster than rank 0, with another key each time.
#[test]
fn publications_take_turns() {
    let advert = |key: u8| Advert {
        candidates: vec![SocketAddr::from(([127, 0, 0, 1], key.into()))],
        key: Some([key; 16]),
        origin: String::new(),
    };
    let mut search = Search::default();
    let mut chosen =
        |seen: &[u8]| search.choose(seen.iter().map(|key| advert(*key)).collect()).unwrap().key.unwrap()[0];
    assert_eq!([[2, 1], [3, 1], [4, 1], [5, 1], [6, 1]].map(|seen| chosen(&seen)), [2, 1, 1, 1, 1]);
    assert_eq!([[7, 8], [8, 7], [7, 8]].map(|seen| chosen(&seen)), [7, 8, 7], "in turn");
    assert_eq!([[9], [9]].map(|seen| chosen(&seen)), [9, 9], "nothing else answers");
    for key in 10..=255 {
        chosen(&[key, 1]);
    }
    assert!(search.queue.len() <= MAX_PUBLICATIONS + 2, "it is bounded");
    assert!(search.choose(Vec::new()).is_none());
}
