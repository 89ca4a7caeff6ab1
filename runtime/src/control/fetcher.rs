//! Newcomer's side of copying the members' state, with one connection to each listener of an invitation.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc as queue;

use super::coordinator::BoxedStream;
use super::handshake::Credentials;
use super::invitation::Invitation;
use super::peers::acceptor::Opening;
use super::peers::listener::{ConnectError, Locality};
use super::peers::snapshots::{FromFetcher, Hash, ToFetcher, hear};
use super::peers::waiting_list::{BEAT, GroupId, MemberAddress};
use super::runtime::ControlRuntime;
use super::wire::{encode, invalid};
use crate::error::Result;
use crate::job::limits::{CONNECT_TIMEOUT, RETRY_MOST};
use crate::join::{JoinSpec, host_key};

/// Longest wait for one chunk. A member that takes longer is stopped or cut off, and is given up for now.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(5);

/// A request to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// A chunk of this many bytes.
    Chunk {
        index: usize,
        bytes: usize,
    },
    Hash {
        index: usize,
    },
}

/// A message from a member. `source` is its place in the invitation.
#[derive(Debug)]
pub(crate) enum News {
    Offered {
        source: usize,
        version: u64,
        digest: Hash,
        requests: Requests,
    },
    Chunk {
        source: usize,
        index: usize,
        bytes: Vec<u8>,
    },
    Hash {
        source: usize,
        index: usize,
        hash: Hash,
    },
    /// The connection has ended, and outstanding requests get no answer. The fetcher connects again.
    Gone {
        source: usize,
        why: String,
    },
}

/// The queue of requests to a member over one connection. Requests end with their connection: the next one has a queue
/// of its own.
#[derive(Debug)]
pub(crate) struct Requests(queue::UnboundedSender<Job>);

impl Requests {
    pub(crate) fn ask(&self, job: Job) {
        // If the connection has ended, `News::Gone` reports it.
        let _ = self.0.send(job);
    }
}

/// Connections to all members of an invitation, from which a newcomer fetches their state.
pub(crate) struct Fetcher {
    /// For each place in the invitation: whether the member is on this host.
    near: Vec<bool>,
    news: Receiver<News>,
    _runtime: ControlRuntime,
}

impl Fetcher {
    /// Connects to all members of an invitation, and connects again whenever a connection ends, as long as the fetcher
    /// exists. `spec` has the job's secret, if there is one.
    pub(crate) fn new(invitation: &Invitation, spec: &JoinSpec) -> Result<Self> {
        let runtime = ControlRuntime::new()?;
        let mut spec = spec.clone();
        spec.secret = invitation.job_secret(spec.secret.as_ref());
        let (report, news) = mpsc::channel();
        let near = invitation.addresses.iter().cloned().enumerate().map(|(source, at)| {
            let near = at.host_key == host_key();
            let way = Way {
                source,
                locality: match at.listener.has_port() {
                    true => Locality::of_hosts(host_key(), at.host_key),
                    false => Locality::SameProcess,
                },
                credentials: at.listener.credentials(&spec),
                at,
                group: invitation.group,
            };
            let report = report.clone();
            runtime.spawn(async move {
                loop {
                    let why = attend(&way, &report).await;
                    if report.send(News::Gone { source: way.source, why }).is_err() {
                        return;
                    }
                    tokio::time::sleep(RETRY_MOST).await;
                }
            });
            near
        });
        Ok(Self { near: near.collect(), news, _runtime: runtime })
    }

    /// Returns whether each member is on this host, by place in the invitation.
    pub(crate) fn near(&self) -> &[bool] {
        &self.near
    }

    /// Blocks until there is news, at most until the given time.
    pub(crate) fn hear(&self, until: Instant) -> Option<News> {
        self.news.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }
}

/// The way to one member.
struct Way {
    source: usize,
    at: MemberAddress,
    locality: Locality,
    credentials: Credentials,
    group: GroupId,
}

/// Serves one connection to a member until it ends. Returns why it has ended.
async fn attend(way: &Way, report: &Sender<News>) -> String {
    let listener = &way.at.listener;
    let opening = Opening::State { group: way.group };
    match listener.connect(way.locality, way.credentials.clone(), &opening, CONNECT_TIMEOUT).await {
        Ok(stream) => match fetch(way.source, stream, report).await {
            Ok(()) => "nothing more is requested".to_owned(),
            Err(error) => error.to_string(),
        },
        Err(ConnectError::Gone(why)) => format!("no member offers its state: {why}"),
        Err(error) => error.text(),
    }
}

async fn fetch(source: usize, stream: BoxedStream, report: &Sender<News>) -> io::Result<()> {
    let (mut read, mut write) = tokio::io::split(stream);
    let (ToFetcher::Offered { version, digest, .. }, _) = hear_beating(&mut read, &mut write, 0).await?
    else {
        return Err(invalid("it has not said what it offers".to_owned()));
    };
    let (ask, mut jobs) = queue::unbounded_channel();
    let _ = report.send(News::Offered { source, version, digest, requests: Requests(ask) });
    loop {
        let Ok(job) = tokio::time::timeout(BEAT, jobs.recv()).await else {
            beat(&mut write).await?;
            continue;
        };
        let Some(job) = job else { break };
        let (request, expected) = match job {
            Job::Chunk { index, bytes } => (FromFetcher::Chunk { index: index as u32 }, bytes),
            Job::Hash { index } => (FromFetcher::Hash { index: index as u32 }, 0),
        };
        write.write_all(&encode(&request)).await?;
        write.flush().await?;
        let heard = tokio::time::timeout(CHUNK_TIMEOUT, hear_beating(&mut read, &mut write, expected)).await;
        let news = match (job, heard.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??) {
            (Job::Chunk { index, .. }, (ToFetcher::Chunk { .. }, bytes)) => {
                News::Chunk { source, index, bytes }
            }
            (Job::Hash { index }, (ToFetcher::Hash { hash }, _)) => News::Hash { source, index, hash },
            _ => return Err(invalid("its answer does not match the question".to_owned())),
        };
        if report.send(news).is_err() {
            break;
        }
    }
    Ok(())
}

/// Reads a message from the member, and tells it at every beat that this newcomer is there.
async fn hear_beating(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
    expected: usize,
) -> io::Result<(ToFetcher, Vec<u8>)> {
    let mut hearing = std::pin::pin!(hear(read, expected));
    loop {
        match tokio::time::timeout(BEAT, &mut hearing).await {
            Ok(heard) => return heard,
            Err(_) => beat(write).await?,
        }
    }
}

async fn beat(write: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    write.write_all(&encode(&FromFetcher::Beat)).await?;
    write.flush().await
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio::task::JoinHandle;

    use super::super::wire::{decode, read_frame};
    use super::*;
    use crate::job::limits::MAX_HELLO_FRAME;

    type Connection = JoinHandle<io::Result<()>>;

    /// Connects to a member that offers something, and returns the queue of requests to it.
    async fn connect(report: &Sender<News>, news: &Receiver<News>) -> (DuplexStream, Connection, Requests) {
        let (near, mut far) = tokio::io::duplex(4096);
        let report = report.clone();
        let connection = tokio::spawn(async move { fetch(0, Box::new(near), &report).await });
        let offered = ToFetcher::Offered { version: 7, digest: [0; 32], chunks: 2 };
        far.write_all(&encode(&offered)).await.unwrap();
        loop {
            match news.try_recv() {
                Ok(News::Offered { requests, .. }) => return (far, connection, requests),
                Ok(other) => panic!("{other:?}"),
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_request_for_a_connection_that_has_ended_is_not_sent_on_the_next_one() {
        let ask = |requests: &Requests, index| requests.ask(Job::Chunk { index, bytes: 8 });
        let (report, news) = mpsc::channel();
        let (far, connection, before) = connect(&report, &news).await;
        ask(&before, 0);
        drop(far);
        connection.await.unwrap().unwrap_err();
        // The newcomer has not heard yet that the connection has ended.
        ask(&before, 0);
        let (mut far, _connection, now) = connect(&report, &news).await;
        ask(&before, 0);
        ask(&now, 1);
        let asked = read_frame(&mut far, MAX_HELLO_FRAME).await.unwrap().expect("a request");
        assert_eq!(decode::<FromFetcher>(&asked).unwrap(), FromFetcher::Chunk { index: 1 });
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_that_waits_for_a_chunk_says_that_it_is_there() {
        let (report, news) = mpsc::channel();
        let (mut far, _connection, requests) = connect(&report, &news).await;
        requests.ask(Job::Chunk { index: 0, bytes: 8 });
        let mut said = Vec::new();
        for _ in 0..3 {
            let frame = read_frame(&mut far, MAX_HELLO_FRAME).await.unwrap().expect("a word");
            said.push(decode::<FromFetcher>(&frame).unwrap());
        }
        assert_eq!(said, [FromFetcher::Chunk { index: 0 }, FromFetcher::Beat, FromFetcher::Beat]);
    }
}
