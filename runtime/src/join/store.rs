//! Client of PyTorch's TCPStore, for jobs that torchrun starts: its agent owns MASTER_PORT and serves a store there.
//!
//! In its protocol, a client opens with a validation number, then sends queries: one byte with arguments. A string is a
//! 64-bit length in native byte order, followed by the bytes. Kolo uses VALIDATE, PING, SET, WAIT and GET. Stores from
//! before PING (query 13) was added drop the connection, which is reported. Keys of the store object itself begin with
//! "/".

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const VALIDATION_NUMBER: u32 = 0x3C85_F7CE;

const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const WAIT: u8 = 6;
const PING: u8 = 13;

const STOP_WAITING: u8 = 0;

/// Longest value that is read. Kolo's own values are shorter, so a longer one comes from somebody else.
const MAX_VALUE_BYTES: u64 = 16 << 10;

/// Longest wait for validation and ping, which take one round trip.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a TCPStore.
#[derive(Debug)]
pub(crate) struct Store {
    stream: TcpStream,
}

impl Store {
    /// Connects, and verifies that a TCPStore answers.
    pub(crate) async fn connect(address: std::net::SocketAddr) -> io::Result<Self> {
        let deadline = tokio::time::Instant::now() + GREETING_TIMEOUT;
        let late = |problem| move |_| io::Error::new(io::ErrorKind::TimedOut, problem);
        let stream = tokio::time::timeout_at(deadline, TcpStream::connect(address))
            .await
            .map_err(late("no answer; a firewall may be in the way"))??;
        let greeting = async {
            stream.set_nodelay(true)?;
            let mut store = Self { stream };
            let nonce = std::process::id();
            let mut query = vec![VALIDATE];
            query.extend(VALIDATION_NUMBER.to_ne_bytes());
            query.push(PING);
            query.extend(nonce.to_ne_bytes());
            store.stream.write_all(&query).await?;
            let mut answer = [0; 4];
            store.stream.read_exact(&mut answer).await?;
            if u32::from_ne_bytes(answer) != nonce {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the server there is not a TCPStore"));
            }
            Ok(store)
        };
        tokio::time::timeout_at(deadline, greeting)
            .await
            .map_err(late("the server there accepts connections but is not a TCPStore"))?
    }

    /// Returns this end's address: an address of this host that the store's host can reach.
    pub(crate) fn local_ip(&self) -> io::Result<std::net::IpAddr> {
        Ok(self.stream.local_addr()?.ip().to_canonical())
    }

    /// Sets a key. The store does not answer, so a ping sent after it confirms that the store has read it.
    pub(crate) async fn set(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        let mut query = vec![SET];
        put(&mut query, key.as_bytes());
        put(&mut query, value);
        query.push(PING);
        query.extend([1; 4]);
        self.stream.write_all(&query).await?;
        let mut answer = [0; 4];
        self.stream.read_exact(&mut answer).await.map(|_| ())
    }

    /// Waits for a key and reads it. The caller bounds the time. After a time-out, the caller must drop the connection.
    pub(crate) async fn wait_and_get(&mut self, key: &str) -> io::Result<Vec<u8>> {
        let mut query = vec![WAIT];
        query.extend(1u64.to_ne_bytes());
        put(&mut query, key.as_bytes());
        self.stream.write_all(&query).await?;
        let answer = self.stream.read_u8().await?;
        if answer != STOP_WAITING {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the store answered {answer} to a wait"),
            ));
        }
        let mut query = vec![GET];
        put(&mut query, key.as_bytes());
        self.stream.write_all(&query).await?;
        let mut length = [0; 8];
        self.stream.read_exact(&mut length).await?;
        let length = u64::from_ne_bytes(length);
        if length > MAX_VALUE_BYTES {
            let problem = format!("the store holds {length} bytes under '{key}', which Kolo did not write");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        let mut value = vec![0; usize::try_from(length).unwrap_or_default()];
        self.stream.read_exact(&mut value).await?;
        Ok(value)
    }
}

fn put(query: &mut Vec<u8>, bytes: &[u8]) {
    query.extend((bytes.len() as u64).to_ne_bytes());
    query.extend(bytes);
}
