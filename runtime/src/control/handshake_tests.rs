use super::*;
use crate::control::sealed::{RECORD_BYTES, Sealed};

fn keys(secret: Option<&str>, rendezvous: Option<u8>) -> Credentials {
    Credentials { secret: secret.and_then(JobSecret::new), rendezvous: rendezvous.map(|byte| [byte; 16]) }
}

/// Time limit that is only reached if a test fails.
const LONG: std::time::Duration = std::time::Duration::from_secs(20);

type Greeting = Result<Option<SessionKeys>, Rejection>;

async fn both(rank: &Credentials, coordinator: &Credentials) -> (Greeting, Greeting) {
    let (mut a, mut b) = tokio::io::duplex(1024);
    let both = async {
        tokio::join!(
            async {
                let result = greet_coordinator(&mut a, rank).await;
                drop(a);
                result
            },
            async {
                let result = greet_rank(&mut b, coordinator, |_| ()).await;
                drop(b);
                result
            }
        )
    };
    tokio::time::timeout(LONG, both).await.expect("both sides end")
}

fn problem(result: Greeting) -> String {
    match result {
        Err(Rejection::Misfit { problem, .. }) => problem,
        Err(Rejection::Foreign(problem)) => format!("foreign: {problem}"),
        Err(Rejection::OtherJob(problem)) => format!("other job: {problem}"),
        Ok(_) => panic!("expected a rejection"),
    }
}

#[tokio::test(flavor = "current_thread")]
async fn all_keys_must_agree() {
    for (secret, rendezvous) in
        [(None, None), (Some("sesame"), None), (None, Some(7)), (Some("sesame"), Some(7))]
    {
        let own = keys(secret, rendezvous);
        let (rank, coordinator) = both(&own, &own).await;
        match (rank.unwrap(), coordinator.unwrap()) {
            (None, None) => assert!(!own.is_private()),
            (Some(rank), Some(coordinator)) => {
                assert!(own.is_private());
                assert_eq!((rank.outward, rank.inward), (coordinator.inward, coordinator.outward));
                assert_ne!(rank.outward, rank.inward, "each direction has its own");
            }
            _ => panic!("one side seals, the other does not"),
        }
    }
    let (one, two) = (keys(Some("one"), None), keys(Some("two"), None));
    let (rank, coordinator) = both(&one, &two).await;
    assert!(problem(rank).contains("rank 0 has a different job secret"));
    assert!(problem(coordinator).contains("different job secret"));
    let (rank, coordinator) = both(&keys(None, None), &two).await;
    assert!(problem(rank).contains("rank 0 has a job secret, but this process has none"));
    assert!(problem(coordinator).contains("this process has a job secret"));
    // The rendezvous may be an earlier job's, so the rank looks again.
    for (rank, coordinator) in [(Some(1), Some(2)), (Some(1), None), (None, Some(2))] {
        let (rank, coordinator) = both(&keys(Some("same"), rank), &keys(Some("same"), coordinator)).await;
        for told in [problem(rank), problem(coordinator)] {
            assert!(told.starts_with("other job: ") && told.contains("another job"), "{told}");
        }
    }
}

/// Two connections with the same keys share no session key, so bytes recorded from one cannot be opened in the other.
#[tokio::test(flavor = "current_thread")]
async fn every_connection_has_keys_of_its_own() {
    let own = keys(Some("sesame"), None);
    let (first, again) =
        (both(&own, &own).await.0.unwrap().unwrap(), both(&own, &own).await.0.unwrap().unwrap());
    assert_ne!((first.outward, first.inward), (again.outward, again.inward));
}

/// A stranger plays back the bytes of a rank, and fails because the coordinator's nonce differs.
#[tokio::test(flavor = "current_thread")]
async fn a_replay_is_refused() {
    let own = keys(None, Some(7));
    let (mut a, b) = tokio::io::duplex(4096);
    let (mut relay, mut c) = tokio::io::duplex(4096);
    let said = tokio::join!(greet_coordinator(&mut a, &own), greet_rank(&mut c, &own, |_| ()), async {
        let mut b = b;
        let (mut up, mut down) = ([0; PREAMBLE_BYTES], [0; PREAMBLE_BYTES]);
        b.read_exact(&mut up).await.unwrap();
        relay.write_all(&up).await.unwrap();
        relay.read_exact(&mut down).await.unwrap();
        b.write_all(&down).await.unwrap();
        let mut proof = [0; PROOF_BYTES];
        b.read_exact(&mut proof).await.unwrap();
        relay.write_all(&proof).await.unwrap();
        let mut verdict = [0; 1 + MAC_BYTES];
        relay.read_exact(&mut verdict).await.unwrap();
        b.write_all(&verdict).await.unwrap();
        (up, proof)
    });
    assert!(said.0.is_ok() && said.1.is_ok(), "a relay that only passes on is as good as a wire");
    let (mut stranger, mut coordinator) = tokio::io::duplex(4096);
    let (up, proof) = said.2;
    stranger.write_all(&up).await.unwrap();
    stranger.write_all(&proof).await.unwrap();
    assert!(problem(greet_rank(&mut coordinator, &own, |_| ()).await).contains("another job"));
}

/// A man in the middle changes one bit of the handshake, or removes the flags in both directions.
#[tokio::test(flavor = "current_thread")]
async fn a_changed_handshake_is_refused() {
    async fn through(at: usize, change: u8, up: bool, down: bool) -> (Greeting, Greeting) {
        let own = keys(Some("sesame"), Some(7));
        let (mut a, b) = tokio::io::duplex(4096);
        let (c, mut d) = tokio::io::duplex(4096);
        let (from_rank, to_rank) = tokio::io::split(b);
        let (from_coordinator, to_coordinator) = tokio::io::split(c);
        // A side that gives up closes its end, and the relay does the same.
        async fn pass<const N: usize>(
            mut from: impl AsyncRead + Unpin,
            mut to: impl AsyncWrite + Unpin,
            (at, change): (usize, u8),
        ) {
            let (mut bytes, mut have) = ([0; N], 0);
            while let Ok(n @ 1..) = from.read(&mut bytes[have..]).await {
                if (have..have + n).contains(&at) {
                    bytes[at] ^= change;
                }
                if to.write_all(&bytes[have..have + n]).await.is_err() {
                    break;
                }
                have += n;
            }
            let _ = to.shutdown().await;
        }
        let changed = |is_changed: bool| if is_changed { (at, change) } else { (usize::MAX, 0) };
        let up = pass::<{ PREAMBLE_BYTES + PROOF_BYTES }>(from_rank, to_coordinator, changed(up));
        let down = pass::<{ PREAMBLE_BYTES + 1 + MAC_BYTES }>(from_coordinator, to_rank, changed(down));
        let rank = async {
            let result = greet_coordinator(&mut a, &own).await;
            drop(a);
            result
        };
        let coordinator = async {
            let result = greet_rank(&mut d, &own, |_| ()).await;
            drop(d);
            result
        };
        let all = async { tokio::join!(rank, coordinator, up, down) };
        let (rank, coordinator, (), ()) = tokio::time::timeout(LONG, all).await.expect("both sides end");
        (rank, coordinator)
    }
    for at in 0..PREAMBLE_BYTES + PROOF_BYTES {
        let (rank, _) = through(at, 0x10, true, false).await;
        assert!(rank.is_err(), "byte {at} towards the coordinator");
    }
    // Only the coordinator's answer is changed, so only the rank can notice.
    for at in 0..PREAMBLE_BYTES + 1 + MAC_BYTES {
        let (rank, _) = through(at, 0x10, false, true).await;
        assert!(rank.is_err(), "byte {at} towards the rank");
    }
    // Each side is made to believe that the other has no keys.
    let (rank, coordinator) = through(12, (FLAG_SECRET | FLAG_RENDEZVOUS) as u8, true, true).await;
    assert!(rank.is_err() && coordinator.is_err(), "no downgrade");
}

/// A false coordinator gets a proof that is useless elsewhere, and nothing that follows the handshake.
#[tokio::test(flavor = "current_thread")]
async fn a_false_coordinator_is_recognised() {
    let own = keys(None, Some(7));
    let (mut a, mut b) = tokio::io::duplex(4096);
    let coordinator = async move {
        let mut seen = vec![0; PREAMBLE_BYTES];
        b.read_exact(&mut seen).await.unwrap();
        let false_one = Preamble::ours(FLAG_RENDEZVOUS).unwrap();
        b.write_all(&false_one.to_bytes()).await.unwrap();
        b.write_all(&[VERDICT_GOOD; 1 + MAC_BYTES]).await.unwrap();
        b.read_to_end(&mut seen).await.unwrap();
        seen
    };
    let rank = async move {
        let result = greet_coordinator(&mut a, &own).await;
        drop(a);
        result
    };
    let both = async { tokio::join!(rank, coordinator) };
    let (result, seen) = tokio::time::timeout(LONG, both).await.expect("both sides end");
    assert!(problem(result).contains("does not know this job's keys"));
    assert_eq!(seen.len(), PREAMBLE_BYTES + PROOF_BYTES, "a preamble and a proof, nothing else");
    assert!(!seen.windows(16).any(|window| window == [7; 16]), "the key itself is not among it");
}

/// No third party can read the bytes after the handshake.
#[tokio::test(flavor = "current_thread")]
async fn what_follows_is_sealed() {
    let own = keys(Some("sesame"), None);
    let (rank, coordinator) = both(&own, &own).await;
    let (near, mut wire) = tokio::io::duplex(2 * RECORD_BYTES);
    let mut near = Sealed::new(near, &rank.unwrap().unwrap());
    near.write_all(b"the job's cookie").await.unwrap();
    near.flush().await.unwrap();
    drop(near);
    let mut seen = Vec::new();
    wire.read_to_end(&mut seen).await.unwrap();
    assert!(!seen.windows(4).any(|window| b"the job's cookie".windows(4).any(|word| word == window)));
    let mut far = Sealed::new(tokio::io::join(&seen[..], tokio::io::sink()), &coordinator.unwrap().unwrap());
    let mut plain = String::new();
    far.read_to_string(&mut plain).await.unwrap();
    assert_eq!(plain, "the job's cookie");
}

#[tokio::test(flavor = "current_thread")]
async fn another_version_is_named_on_both_sides() {
    let nobody = Credentials::default();
    let other = Preamble { version: *b"9.9.9\0\0\0\0\0\0\0\0\0\0\0", ..Preamble::ours(0).unwrap() };
    let (mut a, mut b) = tokio::io::duplex(1024);
    a.write_all(&other.to_bytes()).await.unwrap();
    let told = problem(greet_rank(&mut b, &nobody, |_| ()).await);
    assert!(told.contains(&format!("runs Kolo 9.9.9 (protocol {PROTOCOL})")), "{told}");
    let (mut a, mut b) = tokio::io::duplex(1024);
    b.write_all(&other.to_bytes()).await.unwrap();
    assert!(problem(greet_coordinator(&mut a, &nobody).await).contains("rank 0 runs Kolo 9.9.9"));
}

#[tokio::test(flavor = "current_thread")]
async fn strangers_are_told_apart() {
    let nobody = Credentials::default();
    let (mut a, mut b) = tokio::io::duplex(1024);
    a.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    assert!(matches!(greet_rank(&mut b, &nobody, |_| ()).await, Err(Rejection::Foreign(_))));
    let (mut a, mut b) = tokio::io::duplex(1024);
    b.write_all(b"HTTP/1.1 \x1b[2J\r\n").await.unwrap();
    let told = problem(greet_coordinator(&mut a, &nobody).await);
    assert!(told.contains("HTTP/1.1 \\u{1b}[2J"), "{told}");
}

/// A rank whose connection is closed for lack of room learns why.
#[tokio::test(flavor = "current_thread")]
async fn a_full_coordinator_says_so() {
    let (mut a, mut b) = tokio::io::duplex(1024);
    b.write_all(&too_many(4711).unwrap()).await.unwrap();
    let told = problem(greet_coordinator(&mut a, &keys(None, Some(1))).await);
    assert!(told.starts_with("foreign: ") && told.contains("rejected 4711"), "{told}");
}
