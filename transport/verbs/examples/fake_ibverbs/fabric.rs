//! The adapters and the network between them: requests are executed, with the checks of real adapters.

use std::ptr;

use kolo_verbs::sys::*;

use crate::knob::Knob;
use crate::{Sending, World};

impl World {
    /// Returns the bytes of these pieces, if their keys permit it.
    fn gather(&self, pieces: &[ibv_sge]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for piece in pieces {
            let source = self.within(piece.lkey, piece.addr, u64::from(piece.length), 0)?;
            // SAFETY: the range is within a registered region, which its owner keeps mapped.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(source, piece.length as usize) });
        }
        Some(bytes)
    }

    fn scatter(&self, pieces: &[ibv_sge], mut bytes: &[u8]) -> Option<()> {
        for piece in pieces {
            let (now, later) = bytes.split_at(bytes.len().min(piece.length as usize));
            let target =
                self.within(piece.lkey, piece.addr, u64::from(piece.length), IBV_ACCESS_LOCAL_WRITE)?;
            // SAFETY: the range is within a registered region; `bytes` is a copy of the stand-in's own.
            unsafe { target.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
            bytes = later;
        }
        Some(())
    }

    fn within(&self, key: u32, start: u64, len: u64, access: u32) -> Option<*mut u8> {
        let region = self.regions.get(&key)?;
        let end = start.checked_add(len)?;
        (start >= region.start && end <= region.start + region.len && region.access & access == access)
            .then_some(start as *mut u8)
    }

    /// Executes posted requests until a send must wait.
    pub(crate) fn progress(&mut self, number: u32) {
        loop {
            let Some(pair) = self.pairs.get_mut(&number) else { return };
            if pair.state == IBV_QPS_ERR {
                return self.flush(number);
            }
            let (peer, endless, queue) = (pair.peer, pair.endless_retry, pair.send_queue);
            let Some(send) = pair.sends.pop_front() else { return };
            let injected = self.knobs.take(Knob::NextStatus).map(|status| status as u32);
            let status = match injected.map_or_else(|| self.carry_out(peer, &send), Err) {
                Ok(()) => 0,
                Err(13) if endless && injected.is_none() => {
                    self.pairs.get_mut(&number).expect("above").sends.push_front(send);
                    return;
                }
                Err(status) => status,
            };
            if status != 0 || send.flags & IBV_SEND_SIGNALED != 0 {
                let opcode = match send.opcode {
                    IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => IBV_WC_SEND,
                    IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
                    _ => IBV_WC_RDMA_WRITE,
                };
                let byte_len = send.pieces.iter().map(|piece| piece.length).sum();
                let vendor_err = if status == 0 { 0 } else { 0xfa };
                let entry = ibv_wc {
                    wr_id: send.id,
                    status,
                    opcode,
                    byte_len,
                    qp_num: number,
                    vendor_err,
                    ..Default::default()
                };
                self.complete(queue, entry);
            }
            if status != 0 {
                self.pairs.get_mut(&number).expect("above").state = IBV_QPS_ERR;
            }
        }
    }

    pub(crate) fn flush(&mut self, number: u32) {
        let pair = self.pairs.get_mut(&number).expect("a live pair");
        let (send_queue, receive_queue) = (pair.send_queue, pair.receive_queue);
        let sends: Vec<u64> = pair.sends.drain(..).map(|send| send.id).collect();
        let receives: Vec<u64> = pair.receives.drain(..).map(|(id, _)| id).collect();
        let ids = sends.into_iter().map(|id| (send_queue, id));
        for (queue, wr_id) in ids.chain(receives.into_iter().map(|id| (receive_queue, id))) {
            self.complete(queue, ibv_wc { wr_id, status: 5, qp_num: number, ..Default::default() });
        }
    }

    /// Executes one request towards the pair `peer`; a failure there is reported there too.
    fn carry_out(&mut self, peer: u32, send: &Sending) -> Result<(), u32> {
        let target = self.pairs.get(&peer).ok_or(12u32)?;
        if target.state != IBV_QPS_RTR && target.state != IBV_QPS_RTS {
            return Err(12);
        }
        let len: u64 = send.pieces.iter().map(|piece| u64::from(piece.length)).sum();
        let (needs, is_write) = match send.opcode {
            IBV_WR_RDMA_READ => (IBV_ACCESS_REMOTE_READ, false),
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => (IBV_ACCESS_REMOTE_WRITE, true),
            _ => (0, false),
        };
        let place = if needs == 0 || len == 0 {
            ptr::null_mut()
        } else {
            let allowed = target.access & needs == needs;
            let place = self.within(send.key, send.remote, len, needs).filter(|_| allowed);
            let Some(place) = place else {
                self.pairs.get_mut(&peer).expect("above").state = IBV_QPS_ERR;
                self.flush(peer);
                return Err(10);
            };
            place
        };
        if send.opcode == IBV_WR_RDMA_READ {
            // SAFETY: the range is within a region of the peer, which its owner keeps mapped.
            let bytes = unsafe { std::slice::from_raw_parts(place, len as usize) }.to_vec();
            return self.scatter(&send.pieces, &bytes).ok_or(4);
        }
        let takes_receive = send.opcode != IBV_WR_RDMA_WRITE;
        if takes_receive && self.pairs[&peer].receives.is_empty() {
            return Err(13);
        }
        let bytes = match &send.inline {
            Some(bytes) => bytes.clone(),
            None => self.gather(&send.pieces).ok_or(4u32)?,
        };
        if is_write && len > 0 {
            // SAFETY: the range is within a region of the peer, which permits writing; `bytes` is a copy of the
            // stand-in's own.
            unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        if takes_receive {
            self.receive(peer, send, &bytes, is_write)?;
        }
        Ok(())
    }

    fn receive(&mut self, peer: u32, send: &Sending, bytes: &[u8], is_write: bool) -> Result<(), u32> {
        let target = self.pairs.get_mut(&peer).expect("checked by the caller");
        let (id, pieces) = target.receives.pop_front().expect("checked by the caller");
        let queue = target.receive_queue;
        let room: u64 = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        let (status, answer) = if is_write {
            (0, Ok(()))
        } else if room < bytes.len() as u64 {
            (1, Err(9))
        } else if self.scatter(&pieces, bytes).is_none() {
            (4, Err(11))
        } else {
            (0, Ok(()))
        };
        let with_immediate = matches!(send.opcode, IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM);
        let entry = ibv_wc {
            wr_id: id,
            status,
            opcode: if is_write { IBV_WC_RECV_RDMA_WITH_IMM } else { IBV_WC_RECV },
            byte_len: bytes.len() as u32,
            imm_data: send.immediate,
            qp_num: peer,
            wc_flags: if with_immediate { IBV_WC_WITH_IMM } else { 0 },
            ..Default::default()
        };
        self.complete(queue, entry);
        if status != 0 {
            self.pairs.get_mut(&peer).expect("above").state = IBV_QPS_ERR;
            self.flush(peer);
        }
        answer
    }
}
