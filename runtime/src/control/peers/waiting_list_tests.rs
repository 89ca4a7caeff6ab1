use super::*;
use crate::control::handshake::Credentials;
use crate::control::peers::acceptor::Opening;
use crate::control::peers::listener::{ConnectError, Listener, Locality};
use crate::job::limits::{MAX_LISTENER_ADDRESSES, MAX_TEXT_BYTES};
use crate::join::{JoinSpec, Locator};

const GROUP: GroupId = [9; 16];

const PATIENCE: Duration = Duration::from_secs(20);

fn newcomer(listener: &Listener) -> Newcomer {
    Newcomer {
        listener: listener.address().clone(),
        hostname: "node7".into(),
        pid: 4711,
        host_key: 3,
        version: VERSION.into(),
        slot: None,
        settings: vec![7],
    }
}

fn waiting_list(listener: &Listener) -> Arc<WaitingList> {
    let check: Check = Box::new(|newcomer| {
        (newcomer.settings != [7]).then(|| ("different settings".into(), "use 7".into()))
    });
    listener.waiting_list(GROUP, || WaitingList::new(GROUP, Duration::from_secs(1), check))
}

async fn connect(from: &Listener, at: &Listener, group: GroupId) -> Result<BoxedStream, ConnectError> {
    let credentials = at.address().credentials(&spec());
    from.connect(at.address(), Locality::SameHost, credentials, &Opening::Wait { group }, PATIENCE).await
}

fn spec() -> JoinSpec {
    let mut spec = JoinSpec::new(0, 1, Locator::Local(Default::default()), "a test");
    spec.one_host = true;
    spec
}

/// Returns the member's answer to a hello.
async fn answer(from: &Listener, at: &Listener, hello: &FromNewcomer) -> Option<ToNewcomer> {
    let mut stream = connect(from, at, GROUP).await.expect("the waiting list is open");
    stream.write_all(&encode(hello)).await.expect("it reads");
    stream.flush().await.expect("it reads");
    let (read, _write) = tokio::io::split(stream);
    hear(&mut BufReader::new(read), PATIENCE).await
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn who_does_not_fit_is_told_why() {
    let (listener, own) = (Listener::open_for_threads().unwrap(), Listener::open_for_threads().unwrap());
    let waiting_list = waiting_list(&listener);
    waiting_list.set_members(vec![MemberAddress { listener: listener.address().clone(), host_key: 3 }]);
    let refused = |change: &dyn Fn(&mut Newcomer)| {
        let mut hello = newcomer(&own);
        change(&mut hello);
        let (own, listener) = (&own, &listener);
        async move {
            match answer(own, listener, &FromNewcomer::Hello(hello)).await {
                Some(ToNewcomer::Refused { problem, .. }) => problem,
                other => panic!("{other:?}"),
            }
        }
    };
    let told = refused(&|newcomer| newcomer.version = "0.0.1".into()).await;
    assert!(told.contains(&format!("runs Kolo {VERSION}, but the newcomer runs 0.0.1")), "{told}");
    assert_eq!(refused(&|newcomer| newcomer.settings = vec![8]).await, "different settings");
    let told = refused(&|newcomer| newcomer.listener = listener.address().clone()).await;
    assert_eq!(told, "process 4711 on node7 has the identity of a current or former member");
    assert!(waiting_list.newcomers().is_empty());
    // This group is another one, or no longer exists.
    let unknown = connect(&own, &listener, [1; 16]).await;
    assert!(matches!(unknown, Err(ConnectError::Gone(_))));
    waiting_list.close();
    assert!(matches!(connect(&own, &listener, GROUP).await, Err(ConnectError::Gone(_))));
}

#[tokio::test(flavor = "current_thread")]
async fn a_newcomer_waits_while_it_says_something_and_no_longer() {
    let (listener, own) = (Listener::open_for_threads().unwrap(), Listener::open_for_threads().unwrap());
    let waiting_list = waiting_list(&listener);
    let hello = FromNewcomer::Hello(newcomer(&own));
    let mut stream = connect(&own, &listener, GROUP).await.unwrap();
    stream.write_all(&encode(&hello)).await.unwrap();
    until("it waits", || waiting_list.newcomers().len() == 1).await;
    // The newcomer has lost its connection and comes again. The new connection counts.
    let mut again = connect(&own, &listener, GROUP).await.unwrap();
    again.write_all(&encode(&hello)).await.unwrap();
    until("only the new one", || waiting_list.lock().arrivals == 2).await;
    assert_eq!(waiting_list.newcomers(), [newcomer(&own)]);
    drop(stream);
    assert_eq!(waiting_list.newcomers().len(), 1, "the end of the old connection means nothing");
    let lost = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let admission = Admission {
        at: MemberAddress { listener: listener.address().clone(), host_key: 3 },
        regroup_id: [1; 32],
        rank: 2,
        world_size: 3,
        patience: PATIENCE,
        lineage: Vec::new(),
    };
    let noted = lost.clone();
    let note = Box::new(move || noted.store(true, std::sync::atomic::Ordering::Relaxed));
    let _admitted = waiting_list.admit(own.address().id, admission.clone(), note).expect("it waits");
    assert!(waiting_list.newcomers().is_empty(), "it is on its way");
    assert!(waiting_list.admit(12345, admission, Box::new(|| ())).is_none(), "nobody of that name");
    // This newcomer is silent from the beginning.
    until("silence is noticed", || lost.load(std::sync::atomic::Ordering::Relaxed)).await;
}

#[tokio::test(flavor = "current_thread")]
async fn strangers_and_garbage_do_no_harm() {
    let listener = Listener::open_port(&spec()).await.unwrap();
    let own = Listener::open_port(&spec()).await.unwrap();
    let waiting_list = waiting_list(&listener);
    // A caller without the key of the listener is rejected.
    let credentials = Credentials { secret: None, rendezvous: Some([0; 16]) };
    let opening = Opening::Wait { group: GROUP };
    let outcome = own.connect(listener.address(), Locality::SameHost, credentials, &opening, PATIENCE).await;
    let Err(ConnectError::Refused(text)) = outcome else { panic!("it was let in") };
    assert!(text.contains("another rendezvous key"), "{text}");
    // So is a caller with another secret.
    let mut credentials = listener.address().credentials(&spec());
    credentials.secret = crate::job::JobSecret::new("x");
    let outcome = own.connect(listener.address(), Locality::SameHost, credentials, &opening, PATIENCE).await;
    assert!(matches!(outcome, Err(ConnectError::Misfit { problem, .. }) if problem.contains("job secret")));
    // So are frames that are no hello, or too long.
    let mut garbage = encode(&FromNewcomer::Beat).to_vec();
    for _ in 0..20 {
        let mut stream = connect(&own, &listener, GROUP).await.unwrap();
        let _ = stream.write_all(&garbage).await;
        let _ = stream.flush().await;
        assert_eq!(read_frame(&mut stream, 1000).await.ok().flatten(), None, "the connection ends");
        garbage = garbage.iter().map(|byte| byte.wrapping_mul(31).wrapping_add(17)).collect();
    }
    assert!(waiting_list.newcomers().is_empty());
    let welcome = answer(&own, &listener, &FromNewcomer::Hello(newcomer(&own))).await;
    assert_eq!(welcome, Some(ToNewcomer::Welcome { addresses: Vec::new() }), "and whoever fits is welcome");
}

#[tokio::test(flavor = "current_thread")]
async fn a_newcomer_of_the_largest_group_hears_of_some_listeners() {
    let (listener, own) = (Listener::open_for_threads().unwrap(), Listener::open_for_threads().unwrap());
    let waiting_list = waiting_list(&listener);
    let address = MemberAddress { listener: listener.address().clone(), host_key: u64::MAX };
    waiting_list.set_members(vec![address; crate::job::MAX_WORLD_SIZE as usize]);
    let Some(ToNewcomer::Welcome { addresses }) =
        answer(&own, &listener, &FromNewcomer::Hello(newcomer(&own))).await
    else {
        panic!("no welcome")
    };
    assert_eq!(addresses.len(), MAX_MEMBER_ADDRESSES);
}

/// Otherwise one newcomer could keep the members from telling each other who is waiting, and so from growing.
#[tokio::test(flavor = "current_thread")]
async fn a_newcomer_that_tells_too_much_of_itself_is_cut_short() {
    let (listener, own) = (Listener::open_for_threads().unwrap(), Listener::open_for_threads().unwrap());
    let waiting_list = waiting_list(&listener);
    let mut hello = newcomer(&own);
    hello.hostname = "x".repeat(MAX_TEXT_BYTES);
    hello.listener.addresses = vec![([10, 0, 0, 1], 7).into(); 2000];
    let welcome = answer(&own, &listener, &FromNewcomer::Hello(hello)).await;
    assert!(matches!(welcome, Some(ToNewcomer::Welcome { .. })), "{welcome:?}");
    let kept = waiting_list.newcomers().remove(0);
    assert_eq!(kept.hostname.len(), MAX_NAME_BYTES);
    assert_eq!(kept.listener.addresses.len(), MAX_LISTENER_ADDRESSES);
}

#[tokio::test(flavor = "current_thread")]
async fn a_waiting_list_has_an_end() {
    let listener = Listener::open_for_threads().unwrap();
    let waiting_list = waiting_list(&listener);
    let mut streams = Vec::new();
    for _ in 0..=MAX_WAITING_NEWCOMERS {
        let own = Listener::open_for_threads().unwrap();
        let mut stream = connect(&own, &listener, GROUP).await.unwrap();
        stream.write_all(&encode(&FromNewcomer::Hello(newcomer(&own)))).await.unwrap();
        let frame = read_frame(&mut stream, MAX_BLOB_BYTES).await.unwrap().expect("an answer");
        streams.push((decode::<ToNewcomer>(&frame).unwrap(), stream, own));
    }
    let is_welcome = |(answer, _, _): &(ToNewcomer, _, _)| matches!(answer, ToNewcomer::Welcome { .. });
    assert!(streams[..MAX_WAITING_NEWCOMERS].iter().all(is_welcome));
    assert!(
        matches!(&streams[MAX_WAITING_NEWCOMERS].0, ToNewcomer::Full { problem } if problem.contains("the maximum"))
    );
    assert_eq!(waiting_list.newcomers().len(), MAX_WAITING_NEWCOMERS);
}
