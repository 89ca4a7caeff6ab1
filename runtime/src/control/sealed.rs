//! A stream that no third party can read, change, shorten or replay.
//!
//! The stream is cut into records: the length (2 bytes, little-endian), that many bytes of ChaCha20-Poly1305, and the
//! tag (16 bytes). Each direction counts its records and has its own key, which is derived from the handshake
//! (`handshake.rs`) and was therefore never used before. The count is the nonce, so a record is valid at one place of
//! one connection only. The tag covers the length. A stream may end between records, as TCP streams do; the messages
//! inside (goodbye, closing) say whether more was to come.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{ChaCha20Poly1305, Key, KeyInit, Nonce, Tag};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::wire::invalid;

/// Longest plain text of a record, as in TLS. The reader holds one record at a time.
pub(crate) const RECORD_BYTES: usize = 16 << 10;
const LENGTH_BYTES: usize = 2;
const TAG_BYTES: usize = 16;

/// Memory that a stream keeps between records; memory beyond this, for a longer record, is freed.
const KEPT_BYTES: usize = 2 << 10;

const _: () = assert!(RECORD_BYTES <= u16::MAX as usize);

/// One direction's key.
pub(crate) type DirectionKey = [u8; 32];

/// The keys of one connection, as one end sees them.
#[derive(Clone)]
pub(crate) struct SessionKeys {
    pub(crate) outward: DirectionKey,
    pub(crate) inward: DirectionKey,
}

/// One direction: its key, and the number of records so far.
struct Direction {
    cipher: ChaCha20Poly1305,
    records: u64,
}

impl Direction {
    fn new(key: &DirectionKey) -> Self {
        Self { cipher: ChaCha20Poly1305::new(&Key::from(*key)), records: 0 }
    }

    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.records.to_le_bytes());
        // No connection lives long enough for 2^64 records.
        self.records += 1;
        Nonce::from(nonce)
    }

    fn seal(&mut self, length: [u8; LENGTH_BYTES], bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = self.next_nonce();
        let tag = self.cipher.encrypt_inout_detached(&nonce, &length, bytes.into());
        tag.expect("a record is far shorter than the cipher's limit").into()
    }

    fn open(&mut self, length: [u8; LENGTH_BYTES], bytes: &mut [u8], tag: [u8; TAG_BYTES]) -> io::Result<()> {
        let nonce = self.next_nonce();
        self.cipher.decrypt_inout_detached(&nonce, &length, bytes.into(), &Tag::from(tag)).map_err(|_| {
            invalid("a record was altered in transit, or does not belong to this connection".into())
        })
    }
}

/// The sealed stream around a plain one.
pub(crate) struct Sealed<S> {
    stream: S,
    sealing: Direction,
    opening: Direction,
    /// An outgoing record, and how much of it has been sent.
    out: Vec<u8>,
    sent: usize,
    /// An incoming record with its tag, and how much of it has arrived.
    length: [u8; LENGTH_BYTES],
    length_read: usize,
    body: Vec<u8>,
    body_read: usize,
    /// Plain bytes at the beginning of `body`, which are taken from `taken` on. Zero while a record is being read.
    plain: usize,
    taken: usize,
}

impl<S> Sealed<S> {
    pub(crate) fn new(stream: S, keys: &SessionKeys) -> Self {
        Self {
            stream,
            sealing: Direction::new(&keys.outward),
            opening: Direction::new(&keys.inward),
            out: Vec::new(),
            sent: 0,
            length: [0; LENGTH_BYTES],
            length_read: 0,
            body: Vec::new(),
            body_read: 0,
            plain: 0,
            taken: 0,
        }
    }
}

impl<S> Sealed<S> {
    /// Returns the underlying stream.
    pub(crate) const fn inner(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncWrite + Unpin> Sealed<S> {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.out.len() {
            let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.out[self.sent..]))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent;
        }
        self.out.clear();
        self.out.shrink_to(KEPT_BYTES);
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sealed<S> {
    /// Takes one record. Bytes that the stream does not accept at once are sent by the next write or flush.
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        let taken = bytes.len().min(RECORD_BYTES);
        if taken == 0 {
            return Poll::Ready(Ok(0));
        }
        let length = (taken as u16).to_le_bytes();
        this.out.extend_from_slice(&length);
        this.out.extend_from_slice(&bytes[..taken]);
        let tag = this.sealing.seal(length, &mut this.out[LENGTH_BYTES..]);
        this.out.extend_from_slice(&tag);
        match this.poll_drain(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(taken)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Sealed<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.taken < this.plain {
                let bytes = (this.plain - this.taken).min(into.remaining());
                into.put_slice(&this.body[this.taken..this.taken + bytes]);
                this.taken += bytes;
                if this.taken == this.plain {
                    (this.plain, this.taken, this.length_read, this.body_read) = (0, 0, 0, 0);
                    this.body.clear();
                    this.body.shrink_to(KEPT_BYTES);
                }
                return Poll::Ready(Ok(()));
            }
            if this.length_read < LENGTH_BYTES {
                let mut part = ReadBuf::new(&mut this.length[this.length_read..]);
                ready!(Pin::new(&mut this.stream).poll_read(cx, &mut part))?;
                match part.filled().len() {
                    0 if this.length_read == 0 => return Poll::Ready(Ok(())),
                    0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    bytes => this.length_read += bytes,
                }
                if this.length_read < LENGTH_BYTES {
                    continue;
                }
                let length = usize::from(u16::from_le_bytes(this.length));
                if !(1..=RECORD_BYTES).contains(&length) {
                    return Poll::Ready(Err(invalid(format!("a record of {length} bytes"))));
                }
                this.body.resize(length + TAG_BYTES, 0);
            }
            let mut part = ReadBuf::new(&mut this.body[this.body_read..]);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut part))?;
            match part.filled().len() {
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                bytes => this.body_read += bytes,
            }
            if this.body_read == this.body.len() {
                let (bytes, tag) = this.body.split_at_mut(this.body_read - TAG_BYTES);
                let mut tag_bytes = [0; TAG_BYTES];
                tag_bytes.copy_from_slice(tag);
                this.opening.open(this.length, bytes, tag_bytes)?;
                this.plain = bytes.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn pair() -> (SessionKeys, SessionKeys) {
        let (a, b) = ([1; 32], [2; 32]);
        (SessionKeys { outward: a, inward: b }, SessionKeys { outward: b, inward: a })
    }

    /// Returns the bytes of `messages` as they cross the network, one record each.
    async fn records(messages: &[&[u8]]) -> Vec<Vec<u8>> {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut sealed = Sealed::new(near, &pair().0);
        let mut records = Vec::new();
        for message in messages {
            sealed.write_all(message).await.unwrap();
            sealed.flush().await.unwrap();
            let mut record = vec![0; LENGTH_BYTES + message.len() + TAG_BYTES];
            far.read_exact(&mut record).await.unwrap();
            records.push(record);
        }
        records
    }

    async fn opened(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut sealed = Sealed::new(tokio::io::join(bytes, tokio::io::sink()), &pair().1);
        let mut plain = Vec::new();
        sealed.read_to_end(&mut plain).await?;
        Ok(plain)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn long_and_short_bytes_come_through_a_narrow_pipe() {
        let (a, b) = pair();
        let (near, far) = tokio::io::duplex(100);
        let (mut near, mut far) = (Sealed::new(near, &a), Sealed::new(far, &b));
        let long: Vec<u8> = (0..3 * RECORD_BYTES + 5).map(|i| (i * 7) as u8).collect();
        let sent = async {
            near.write_all(&long).await.unwrap();
            near.write_all(b"x").await.unwrap();
            near.shutdown().await.unwrap();
            let mut answer = Vec::new();
            near.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let received = async {
            let mut bytes = Vec::new();
            far.read_to_end(&mut bytes).await.unwrap();
            far.write_all(b"answer").await.unwrap();
            far.shutdown().await.unwrap();
            bytes
        };
        let (answer, bytes) = tokio::join!(sent, received);
        assert_eq!(
            (&bytes[..long.len()], &bytes[long.len()..], &answer[..]),
            (&long[..], &b"x"[..], &b"answer"[..])
        );
    }

    #[tokio::test(flavor = "current_thread")]
    async fn changed_repeated_swapped_and_missing_records_are_refused() {
        let sent = records(&[b"first", b"other", b"third"]).await;
        assert!(!sent.concat().windows(5).any(|w| w == b"first"), "it is not readable");
        assert_eq!(opened(&sent.concat()).await.unwrap(), b"firstotherthird");
        for (what, bytes) in [
            ("repeated", [&sent[0][..], &sent[0]].concat()),
            ("swapped", [&sent[1][..], &sent[0]].concat()),
            ("left out", [&sent[0][..], &sent[2]].concat()),
        ] {
            let error = opened(&bytes).await.expect_err(what);
            assert!(error.to_string().contains("altered in transit"), "{what}: {error}");
        }
        for bit in 0..8 * sent[0].len() {
            let mut bytes = sent[0].clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // A longer length makes the reader wait for more bytes, which do not come.
            opened(&bytes).await.expect_err("one bit");
        }
        assert!(opened(&sent[0][..4]).await.is_err(), "cut off");
    }

    /// A record cannot be played back to its sender.
    #[tokio::test(flavor = "current_thread")]
    async fn a_record_is_not_taken_in_the_other_direction() {
        let sent = records(&[b"mine"]).await.concat();
        let mut own = Sealed::new(tokio::io::join(&sent[..], tokio::io::sink()), &pair().0);
        own.read_u8().await.expect_err("reflected");
    }
}
