//! Ranks of a host that meet, and one that ends before they have.

use super::*;

#[test]
fn a_leader_notices_that_a_member_is_gone() {
    let mut world = introduced(3, &ShmOptions::default());
    let third = world.pop().expect("three");
    std::thread::scope(|scope| {
        let mut members = world.iter_mut();
        let leader = members.next().expect("three");
        let second = members.next().expect("three");
        scope.spawn(|| second.establish(deadline()).expect("the leader serves whoever comes"));
        drop(third);
        let began = Instant::now();
        let error = leader.establish(deadline()).expect_err("the third is gone");
        assert_eq!((error.kind, error.peer), (ErrorKind::PeerLost, Some(2)), "{error}");
        assert!(began.elapsed() < PATIENCE / 4, "{:?}", began.elapsed());
    });
}
