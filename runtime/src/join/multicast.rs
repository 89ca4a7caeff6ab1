//! Rendezvous by UDP multicast: ranks ask a group "where is job X?", and rank 0 answers with its addresses and key.
//!
//! An answer is a hint like any other: a rank tries it, and both ends prove that they know the key. Every process that
//! asks is told the key, so the key separates jobs, but only the job's secret keeps strangers out. Datagrams stay on
//! the local network (TTL 1).

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

use super::addresses::own_addresses;
use super::file::Notice;

/// Longest datagram: a notice with all addresses, which fits into one Ethernet frame.
const MAX_DATAGRAM_BYTES: usize = 1400;

/// Most addresses in an answer.
const MAX_ADDRESSES: usize = 12;

/// Interval between two questions.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Time after which a caller checks its deadline and asks again.
const ASK_FOR: Duration = Duration::from_millis(200);

/// Most answers to a question that are considered.
const MAX_ANSWERS: usize = 8;

const QUESTION: &str = "kolo? 1 ";
const ANSWER: &str = "kolo! 1 ";

/// Address and settings of a query.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) address: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) interface: Option<Ipv4Addr>,
    pub(crate) job: String,
}

/// Stops answering when dropped.
pub(crate) struct Answering(AbortHandle);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Answers questions, on rank 0, until the result is dropped.
pub(crate) fn answer(group: &Group, mut notice: Notice) -> io::Result<Answering> {
    notice.addresses.truncate(MAX_ADDRESSES);
    let socket = socket()?;
    let (mut joined, mut refused) = (0, None);
    for interface in interfaces(group) {
        match socket.join_multicast_v4(&group.address, &interface) {
            Ok(()) => joined += 1,
            Err(error) => refused = Some(error),
        }
    }
    if let (0, Some(error)) = (joined, refused) {
        return Err(error);
    }
    socket.bind(&SocketAddr::from((group.address, group.port)).into())?;
    let socket = UdpSocket::from_std(socket.into())?;
    let question = format!("{QUESTION}{}", group.job).into_bytes();
    let mut answer = format!("{ANSWER}{}\n", group.job).into_bytes();
    answer.extend(notice.to_json());
    let task = tokio::spawn(async move {
        let mut buffer = [0; MAX_DATAGRAM_BYTES];
        loop {
            match socket.recv_from(&mut buffer).await {
                Ok((length, from)) if buffer[..length] == question[..] => {
                    if let Err(error) = socket.send_to(&answer, from).await {
                        tracing::debug!(%from, %error, "answering a question by multicast failed");
                    }
                }
                Ok(_) => {}
                // An earlier answer may have met a closed port. The pause bounds the cost of any other error.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    });
    Ok(Answering(task.abort_handle()))
}

/// How many answers a rank waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    First,
    /// All that come soon after the first one: that may be a stranger's, or another job's of the same name.
    All,
}

/// Asks for a while, on the other ranks. Returns the distinct answers in order.
pub(crate) async fn ask(group: &Group, wanted: Wanted) -> Result<Vec<(Notice, SocketAddr)>, String> {
    let doing =
        |error: io::Error| format!("asking the multicast group {}:{}: {error}", group.address, group.port);
    let socket = socket().map_err(doing)?;
    let interface = group.interface.unwrap_or(Ipv4Addr::UNSPECIFIED);
    socket.bind(&SocketAddr::from((interface, 0)).into()).map_err(doing)?;
    let socket = UdpSocket::from_std(socket.into()).map_err(doing)?;
    let to = SocketAddrV4::new(group.address, group.port);
    let question = format!("{QUESTION}{}", group.job);
    let head = format!("{ANSWER}{}\n", group.job);
    let mut buffer = [0; MAX_DATAGRAM_BYTES];
    let until = tokio::time::Instant::now() + ASK_FOR;
    while tokio::time::Instant::now() < until {
        let (mut sent, mut refused) = (0, None);
        for interface in interfaces(group) {
            let asked = match SockRef::from(&socket).set_multicast_if_v4(&interface) {
                Ok(()) => socket.send_to(question.as_bytes(), to).await,
                Err(error) => Err(error),
            };
            match asked {
                Ok(_) => sent += 1,
                Err(error) => refused = Some(error),
            }
        }
        if let (0, Some(error)) = (sent, refused) {
            return Err(doing(error));
        }
        let mut answers: Vec<(Notice, SocketAddr)> = Vec::new();
        let mut round = tokio::time::Instant::now() + ASK_EVERY;
        while answers.len() < MAX_ANSWERS && tokio::time::Instant::now() < round {
            let heard = tokio::time::timeout_at(round, socket.recv_from(&mut buffer)).await;
            let Ok(Ok((length, from))) = heard else { break };
            if let Some(text) = buffer[..length].strip_prefix(head.as_bytes())
                && let Ok(notice) = Notice::parse(text)
                // Rank 0 answers the question of every interface.
                && answers.iter().all(|(other, _)| !notice.is_same_place(other))
            {
                if answers.is_empty() && wanted == Wanted::All {
                    round = tokio::time::Instant::now() + ASK_EVERY;
                }
                answers.push((notice, from));
                if wanted == Wanted::First {
                    return Ok(answers);
                }
            }
        }
        if !answers.is_empty() {
            return Ok(answers);
        }
    }
    Err(format!(
        "no process answered for job '{}' in the multicast group {}:{}",
        group.job, group.address, group.port
    ))
}

/// Returns the addresses to try: first the one that the answer came from, which is the most likely to be reachable.
pub(crate) fn candidates(mut addresses: Vec<SocketAddr>, from: SocketAddr) -> Vec<SocketAddr> {
    if let Some(port) = addresses.first().map(SocketAddr::port) {
        addresses.insert(0, SocketAddr::new(from.ip(), port));
        addresses.dedup();
    }
    addresses
}

fn socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    socket.set_multicast_ttl_v4(1)?;
    socket.set_multicast_loop_v4(true)?;
    Ok(socket)
}

/// Returns the interface that was named, or all. The system's own choice needs a route that private networks often
/// lack, and is wrong on hosts with several interfaces.
fn interfaces(group: &Group) -> Vec<Ipv4Addr> {
    let all = || {
        own_addresses().into_iter().filter_map(|address| match address {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => None,
        })
    };
    group.interface.map_or_else(|| all().collect(), |interface| vec![interface])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn the_first_answer_does_not_hide_the_others() {
        let address = Ipv4Addr::new(239, 255, 78, (std::process::id() % 250) as u8);
        let port = std::net::UdpSocket::bind((address, 0)).and_then(|socket| socket.local_addr());
        let Ok(port) = port.map(|at| at.port()) else { return println!("skipped: no multicast here") };
        let group = Group { address, port, interface: Some(Ipv4Addr::LOCALHOST), job: "this".into() };
        let notice = |key| Notice::new(vec![([127, 0, 0, 1], u16::from(key)).into()], &[key; 16]);
        let answering: io::Result<Vec<_>> =
            [1, 2].map(|key| answer(&group, notice(key))).into_iter().collect();
        let Ok(_answering) = answering else { return println!("skipped: no multicast on loopback") };
        let until = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            match ask(&group, Wanted::All).await {
                Ok(answers) if answers.len() == 2 => {
                    let mut keys: Vec<_> = answers.iter().map(|(notice, _)| notice.key()).collect();
                    keys.sort_unstable();
                    return assert_eq!(keys, [Some([1; 16]), Some([2; 16])]);
                }
                // On a busy machine the second answer may come too late.
                Ok(_) => assert!(tokio::time::Instant::now() < until, "one of two answers"),
                Err(why) => return println!("skipped: {why}"),
            }
        }
    }
}
