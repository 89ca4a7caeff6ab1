//! Coordinators that break the protocol or say nothing. The former cause an error, not a panic.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::handshake::{Credentials, greet_rank};
use super::peers::evidence::Seen;
use super::wire::{FromCoordinator, GatherKey, PeerInfo, Round, ToCoordinator, decode, encode, read_frame};
use super::{AbortCause, AbortKind, Control, ControlRuntime, Membership, Purpose, Until};
use crate::error::Error;
use crate::job::limits::{GOODBYE_TIMEOUT, MAX_HELLO_FRAME};
use crate::join::{JoinSpec, Locator};

const LONG: Duration = Duration::from_secs(20);

/// Silence that shows that rank 0 is stopped, and longest time of attempts to join that fail. A pause of the machine is
/// shorter.
const SILENCE: Duration = Duration::from_secs(3);

fn peer(rank: u32) -> PeerInfo {
    let hostname = "a\x1b[2Jhost".to_owned();
    PeerInfo { rank, hostname, pid: 1, local_rank: None, version: "1".into(), host_key: 5, relayed_by: None }
}

/// Joins as rank 1 of 2 at a coordinator that welcomes with these peers and answers an all-gather with `blobs` blobs.
fn join(peers: Vec<PeerInfo>, blobs: usize, timeout: Duration) -> Result<Control, Error> {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            tell.send(listener.local_addr().unwrap().port()).unwrap();
            let serve = async {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    if greet_rank(&mut stream, &Credentials::default(), |_| ()).await.is_err() {
                        continue;
                    }
                    let mut stream = BufReader::new(stream);
                    let _ = read_frame(&mut stream, MAX_HELLO_FRAME).await;
                    let listeners = Vec::new();
                    let welcome = FromCoordinator::Welcome {
                        cookie: [3; 16],
                        peers: peers.clone(),
                        listeners,
                        seen: Vec::new(),
                    };
                    let _ = stream.write_all(&encode(&welcome)).await;
                    while let Ok(Some(frame)) = read_frame(&mut stream, 1 << 20).await {
                        if let Ok(ToCoordinator::AllGather { key, .. }) = decode(&frame) {
                            let blobs = vec![vec![1]; blobs];
                            let _ =
                                stream.write_all(&encode(&FromCoordinator::Gathered { key, blobs })).await;
                        }
                    }
                }
            };
            let _ = tokio::time::timeout(LONG, serve).await;
        });
    });
    let port = told.recv_timeout(LONG).unwrap();
    let locator = Locator::Tcp { host: "127.0.0.1".into(), port };
    Control::join(&JoinSpec { timeout, ..JoinSpec::new(1, 2, locator, "a test") }, &ControlRuntime::new()?)
}

#[test]
fn a_welcome_must_name_every_rank_once_and_in_order() {
    let cases = [
        (vec![], "it names 0 ranks"),
        (vec![peer(0)], "it names 1 ranks"),
        (vec![peer(0), peer(1), peer(2)], "it names 3 ranks"),
        (vec![peer(1), peer(0)], "rank 1 in place of rank 0"),
        (vec![peer(0), peer(u32::MAX)], "rank 4294967295 in place of rank 1"),
    ];
    // The rank joins again and again until its time is over.
    let refuse = |(peers, problem)| {
        let error = join(peers, 2, SILENCE).expect_err(problem).to_string();
        assert!(error.contains(problem), "{error}");
    };
    std::thread::scope(|scope| cases.map(|case| drop(scope.spawn(move || refuse(case)))));
}

#[test]
fn an_all_gather_must_bring_one_blob_per_member() {
    for (blobs, is_right) in [(2, true), (0, false), (1, false), (3, false)] {
        let control = join(vec![peer(0), peer(1)], blobs, LONG).unwrap();
        let host = &control.peer_info()[0].hostname;
        assert_eq!(host, "a\\u{1b}[2Jhost", "foreign text is made printable where it is read");
        let key = GatherKey { communicator: 1, round: Round::Introductions };
        let got = control.all_gather(key, &[0, 1], &0_u8, Instant::now() + LONG);
        match got {
            Ok(got) => assert!(is_right && got.len() == 2),
            Err(error) => assert!(
                !is_right && error.to_string().contains(&format!("{blobs} blobs for 2 members")),
                "{error}"
            ),
        }
    }
}

#[test]
fn an_all_gather_names_the_values_that_it_cannot_read() {
    let control = join(vec![peer(0), peer(1)], 2, LONG).unwrap();
    let key = GatherKey { communicator: 1, round: Round::Split(3) };
    let told = control.all_gather(key, &[0, 1], &(), Instant::now() + LONG).unwrap_err().to_string();
    assert!(
        told.contains("requests for split 3 in communicator 0x1 could not be read: 1 bytes after"),
        "{told}"
    );
}

/// Returns the memberships of ranks 1 to `count` - 1 in one communicator, whose coordinator says nothing after the
/// welcome, as if its process were stopped.
fn members_of_a_silent_coordinator(count: u32) -> Vec<Membership> {
    let (tell, told) = std::sync::mpsc::channel();
    let serve = async move {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        tell.send(listener.local_addr().unwrap().port()).unwrap();
        let (mut streams, mut ranks) = (Vec::new(), BTreeMap::from([(0, (peer(0), None))]));
        while ranks.len() < count as usize {
            let (mut stream, _) = listener.accept().await.unwrap();
            greet_rank(&mut stream, &Credentials::default(), |_| ()).await.unwrap();
            let hello = read_frame(&mut stream, MAX_HELLO_FRAME).await.unwrap().unwrap();
            let Ok(ToCoordinator::Hello(hello)) = decode(&hello) else { panic!("a hello comes first") };
            ranks.insert(hello.peer.rank, (hello.peer, hello.listener));
            streams.push(stream);
        }
        let (peers, listeners) = ranks.into_values().unzip();
        let local = Seen { rank: Ipv4Addr::LOCALHOST.into(), coordinator: Ipv4Addr::LOCALHOST.into() };
        let seen = vec![Some(local); count as usize];
        let welcome = encode(&FromCoordinator::Welcome { cookie: [3; 16], peers, listeners, seen });
        for stream in &mut streams {
            stream.write_all(&welcome).await.unwrap();
        }
        tokio::time::sleep(LONG).await;
    };
    std::thread::spawn(|| {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(serve);
    });
    let port = told.recv_timeout(LONG).unwrap();
    let join = |rank| {
        let locator = Locator::Tcp { host: "127.0.0.1".into(), port };
        let spec = JoinSpec { timeout: LONG, ..JoinSpec::new(rank, count, locator, "a test") };
        let control = Control::join(&spec, &ControlRuntime::new().unwrap()).unwrap();
        control.register(7, (0..count).collect::<Arc<[u32]>>())
    };
    std::thread::scope(|scope| {
        let joining: Vec<_> = (1..count).map(|rank| scope.spawn(move || join(rank))).collect();
        joining.into_iter().map(|joining| joining.join().unwrap()).collect()
    })
}

#[test]
fn nobody_waits_for_the_goodbye_of_a_stopped_rank_0_that_was_left_behind() {
    let leave = |member: Membership| {
        let until = Until::GivingUp(Instant::now() + LONG);
        let agreed = member.agree(Purpose::Agree, 1, SILENCE, until).unwrap();
        assert!(!agreed.members.contains(0) && agreed.members.len() == 3, "{agreed:?}");
        let leaves = Instant::now();
        drop(member);
        leaves.elapsed()
    };
    let members = members_of_a_silent_coordinator(4);
    let took = std::thread::scope(|scope| {
        let leaving: Vec<_> = members.into_iter().map(|member| scope.spawn(move || leave(member))).collect();
        leaving.into_iter().map(|leaving| leaving.join().unwrap()).min()
    });
    // A pause of the machine may hold up some of them.
    assert!(took < Some(GOODBYE_TIMEOUT), "{took:?}");
}

#[test]
fn an_abort_reaches_the_members_though_its_rank_leaves_a_stopped_rank_0_at_once() {
    let members = members_of_a_silent_coordinator(4);
    let all = Barrier::new(3);
    std::thread::scope(|scope| {
        for member in members {
            let all = &all;
            scope.spawn(move || {
                let part = member.control().register(8, [1, 2, 3].into());
                let until = Until::GivingUp(Instant::now() + LONG);
                let agreed = member.agree(Purpose::Agree, 1, SILENCE, until).unwrap();
                assert!(!agreed.members.contains(0), "{agreed:?}");
                all.wait();
                if member.control().rank() == 1 {
                    part.abort(AbortCause::new(0, AbortKind::User, "enough"));
                } else {
                    part.abort_flag().wait(Instant::now() + LONG);
                    assert_eq!(&*part.abort_flag().cause().expect("rank 1 has aborted").reason, "enough");
                }
            });
        }
    });
}

#[test]
fn an_abort_and_a_revocation_reach_the_members_though_rank_0_is_stopped() {
    let members = members_of_a_silent_coordinator(3);
    members[0].abort(AbortCause::new(1, AbortKind::User, "enough"));
    for member in &members {
        member.abort_flag().wait(Instant::now() + LONG);
        let cause = member.abort_flag().cause().expect("rank 1 has aborted");
        assert_eq!((cause.by, &*cause.reason), (1, "enough"));
        assert!(!member.abort_flag().is_revoked());
    }
    members[1].revoke(AbortCause::new(2, AbortKind::Revoked, ""));
    let until = Instant::now() + LONG;
    while !members.iter().all(|member| member.abort_flag().is_revoked()) {
        assert!(Instant::now() < until, "a revocation after an abort is told too");
        std::thread::yield_now();
    }
    // Each waits for an answer to its goodbye.
    std::thread::scope(|scope| members.into_iter().for_each(|member| drop(scope.spawn(|| drop(member)))));
}
