//! The relay: if neither of two ranks can dial the other, they meet at rank 0's port, which all ranks have reached, and
//! the relay passes their bytes on. See [`RelayCall`]. The two ranks authenticate each other; the relay does not
//! interpret their bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use kolo_transport::tcp::{RELAY_CALL_BYTES, RELAY_MAGIC_BYTES, RELAY_READY, RelayCall};
use kolo_transport::{Unpoisoned, Unshared};
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::job::Cookie;

/// Bytes that the relay copies at a time, in each direction of a pair: few system calls for long messages, and little
/// memory.
const COPY_BYTES: usize = 128 << 10;

/// Endpoint of the dialer, endpoint of the acceptor, and the channel.
type Pair = (u64, u64, u16);

/// The relay's state: the ends that wait for their partner.
#[derive(Debug)]
pub(super) struct Relay {
    waiting: Mutex<HashMap<Pair, Waiting>>,
    /// Most ends that wait. Further ones are dropped and try again.
    room: usize,
}

impl Default for Relay {
    /// Leaves half of this process's descriptors to others, since each end that waits takes one.
    fn default() -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self { waiting: Mutex::default(), room: usize::try_from(descriptors / 2).unwrap_or(usize::MAX) }
    }
}

/// An end that waits.
#[derive(Debug)]
struct Waiting {
    is_dialer: bool,
    /// Brings the partner's connection to the task that has the end's own. Closed once the end has given up.
    partner: oneshot::Sender<Unshared<TcpStream>>,
}

impl Relay {
    /// Serves a connection that has made this call, until both ends have closed.
    pub(super) async fn serve(
        self: Arc<Self>,
        call: RelayCall,
        stream: Unshared<TcpStream>,
    ) -> std::io::Result<()> {
        let Some((mut one, mut partner)) = self.enter(call, stream) else { return Ok(()) };
        let mut unexpected = [0];
        let mut other = tokio::select! {
            biased;
            partner = &mut partner => match partner {
                Ok(other) => other,
                // The end has connected again.
                Err(_) => return Ok(()),
            },
            // An end says nothing before it hears of its partner, so it has given up. Most have met elsewhere.
            _ = one.peek(&mut unexpected) => {
                partner.close();
                self.forget(call);
                return Ok(());
            }
        };
        tracing::debug!(?call, "a pair meets at the relay");
        one.write_all(&[RELAY_READY]).await?;
        other.write_all(&[RELAY_READY]).await?;
        copy_bidirectional_with_sizes(&mut *one, &mut *other, COPY_BYTES, COPY_BYTES).await?;
        Ok(())
    }

    /// Brings an end to its partner if that is already waiting; otherwise returns the end, and how its partner will
    /// come. If an end connects again, its new connection replaces the earlier one.
    fn enter(
        &self,
        call: RelayCall,
        mut stream: Unshared<TcpStream>,
    ) -> Option<(Unshared<TcpStream>, oneshot::Receiver<Unshared<TcpStream>>)> {
        let mut waiting = self.waiting.lock().unpoisoned();
        if let Some(first) = waiting.remove(&pair(call))
            && first.is_dialer != call.is_dialer
        {
            match first.partner.send(stream) {
                Ok(()) => return None,
                Err(returned) => stream = returned,
            }
        }
        if waiting.len() >= self.room {
            return None;
        }
        let (partner, receiver) = oneshot::channel();
        waiting.insert(pair(call), Waiting { is_dialer: call.is_dialer, partner });
        Some((stream, receiver))
    }

    /// Forgets the end that made this call, unless it has been replaced.
    fn forget(&self, call: RelayCall) {
        let mut waiting = self.waiting.lock().unpoisoned();
        if waiting.get(&pair(call)).is_some_and(|end| end.partner.is_closed()) {
            waiting.remove(&pair(call));
        }
    }
}

fn pair(call: RelayCall) -> Pair {
    (call.dialer, call.acceptor, call.channel)
}

/// Reads the rest of a call that began with `magic`. Returns `None` for a call that belongs to none of the jobs with these
/// cookies. The caller limits the time.
pub(super) async fn read_call(
    stream: &mut TcpStream,
    magic: [u8; RELAY_MAGIC_BYTES],
    cookies: &[Cookie],
) -> std::io::Result<Option<RelayCall>> {
    let mut bytes = [0; RELAY_CALL_BYTES];
    let (head, rest) = bytes.split_at_mut(RELAY_MAGIC_BYTES);
    head.copy_from_slice(&magic);
    stream.read_exact(rest).await?;
    Ok(cookies.iter().find_map(|cookie| RelayCall::decode(&bytes, cookie)))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;

    const COOKIE: Cookie = [5; 16];
    const LONG: Duration = Duration::from_secs(20);

    /// Connects as one end of a pair, and waits until the relay has handled the connection, or the call was refused.
    async fn call(relay: &Arc<Relay>, channel: u16, is_dialer: bool, cookie: Cookie) -> TcpStream {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        let call = RelayCall { dialer: 1, acceptor: 2, channel, is_dialer };
        near.write_all(&call.encode(&cookie)).await.unwrap();
        let mut magic = [0; RELAY_MAGIC_BYTES];
        far.read_exact(&mut magic).await.unwrap();
        assert!(RelayCall::is_begun_by(&magic));
        let call = read_call(&mut far, magic, &[COOKIE]).await.unwrap();
        let Some(call) = call else { return near };
        tokio::spawn(relay.clone().serve(call, Unshared::new(far)));
        // On its one thread, the runtime runs the new task next, up to its first wait.
        tokio::task::yield_now().await;
        near
    }

    /// Waits until no end waits at the relay.
    async fn emptied(relay: &Relay) {
        let emptied = async {
            while !relay.waiting.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, emptied).await.expect("ends that have gone are forgotten");
    }

    async fn read(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        tokio::time::timeout(LONG, stream.read_exact(&mut read)).await.expect("in time").expect("bytes");
        read
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_pair_gets_each_others_bytes() {
        let relay = Arc::new(Relay::default());
        let mut dialer = call(&relay, 0, true, COOKIE).await;
        let mut other = call(&relay, 1, false, COOKIE).await;
        let mut acceptor = call(&relay, 0, false, COOKIE).await;
        assert_eq!(read(&mut dialer, 1).await, [RELAY_READY]);
        assert_eq!(read(&mut acceptor, 1).await, [RELAY_READY]);
        dialer.write_all(b"there").await.unwrap();
        acceptor.write_all(b"back").await.unwrap();
        assert_eq!(
            (read(&mut acceptor, 5).await, read(&mut dialer, 4).await),
            (b"there".to_vec(), b"back".to_vec())
        );
        drop(dialer);
        assert_eq!(acceptor.read(&mut [0]).await.unwrap(), 0, "the end of one is the end for the other");
        let _partner = call(&relay, 1, true, COOKIE).await;
        assert_eq!(read(&mut other, 1).await, [RELAY_READY], "of another channel");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn strangers_are_dropped_and_who_comes_again_takes_its_own_place() {
        let relay = Arc::new(Relay::default());
        let mut stranger = call(&relay, 0, false, [6; 16]).await;
        let mut first = call(&relay, 0, true, COOKIE).await;
        let mut again = call(&relay, 0, true, COOKIE).await;
        assert_eq!(relay.waiting.lock().unwrap().len(), 1);
        let _acceptor = call(&relay, 0, false, COOKIE).await;
        assert_eq!(read(&mut again, 1).await, [RELAY_READY]);
        assert!(relay.waiting.lock().unwrap().is_empty());
        for dropped in [&mut stranger, &mut first] {
            assert!(!matches!(dropped.read(&mut [0]).await, Ok(1..)), "it is closed");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn ends_that_give_up_take_no_room() {
        let relay = Arc::new(Relay { waiting: Mutex::default(), room: 3 });
        for channel in 0..=3 {
            drop(call(&relay, channel, channel % 2 == 0, COOKIE).await);
            emptied(&relay).await;
        }
        let mut dialer = call(&relay, 0, true, COOKIE).await;
        let mut acceptor = call(&relay, 0, false, COOKIE).await;
        assert_eq!(read(&mut dialer, 1).await, [RELAY_READY]);
        assert_eq!(read(&mut acceptor, 1).await, [RELAY_READY]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_end_that_was_replaced_does_not_take_the_new_ones_place_along() {
        let relay = Arc::new(Relay::default());
        let first = call(&relay, 0, true, COOKIE).await;
        let mut again = call(&relay, 0, true, COOKIE).await;
        drop(first);
        let mut acceptor = call(&relay, 0, false, COOKIE).await;
        assert_eq!(read(&mut again, 1).await, [RELAY_READY]);
        assert_eq!(read(&mut acceptor, 1).await, [RELAY_READY]);
    }
}
