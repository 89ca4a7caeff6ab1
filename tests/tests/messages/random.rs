//! Random messages between all ranks.

use kolo_tests::random::Random;

use crate::{contents, everywhere};

/// Messages between all ranks, with few tags, received in another order and by every kind of receive.
#[test]
fn random_traffic() {
    const TAGS: usize = 4;
    // Receives from any source take only messages of this tag, so that the set of their results is known.
    const ANY: u32 = 99;
    everywhere(4, |comm| {
        for seed in 0..4 {
            let mut random = Random::new(seed);
            let me = comm.rank();
            let messages: Vec<(u32, u32, u32, usize)> = (0..300)
                .map(|_| {
                    let longest = [2, 40, 2_000, 60_000][random.index(4)];
                    let tag = if random.index(5) == 0 { ANY } else { random.index(TAGS) as u32 };
                    (random.index(4) as u32, random.index(4) as u32, tag, random.index(longest))
                })
                .collect();
            let body = |number: usize| contents(messages[number].0, 0, number, messages[number].3 + 1);
            let mut own = Random::new(seed << 8 | u64::from(me));
            // Messages by source and tag, in order; the test draws which stream comes next.
            let mut streams: Vec<Vec<usize>> = Vec::new();
            for from in 0..4 {
                for tag in 0..TAGS as u32 {
                    let of = |number: &usize| {
                        let (source, to, with, _) = messages[*number];
                        (source, to, with) == (from, me, tag)
                    };
                    streams.push((0..messages.len()).rev().filter(of).collect());
                }
            }
            let mut to_send: Vec<usize> =
                (0..messages.len()).rev().filter(|number| messages[*number].0 == me).collect();
            let (mut sends, mut receives, mut anys) = (Vec::new(), Vec::new(), Vec::new());
            while !to_send.is_empty() || streams.iter().any(|stream| !stream.is_empty()) {
                if let Some(number) = to_send.pop() {
                    let (_, to, tag, _) = messages[number];
                    sends.push(comm.send_tagged_start(body(number), to, tag).expect("started"));
                }
                let at = own.index(streams.len());
                if let Some(number) = streams[at].pop() {
                    let (from, _, tag, len) = messages[number];
                    let buffer = vec![0; len + 1];
                    let work = comm.recv_tagged_start(buffer, from, tag).expect("started");
                    receives.push((number, work));
                    if receives.len() > 5 {
                        let (number, work) = receives.remove(own.index(5));
                        if to_send.is_empty() {
                            assert_eq!(work.wait().expect("received"), body(number), "message {number}");
                        } else {
                            // Waiting at once might block on a message that its sender has not reached yet.
                            receives.push((number, work));
                        }
                    }
                }
            }
            // All messages have one length, since the order of arrival is not known.
            for (source, to, tag, _) in &messages {
                if *source == me && *tag == ANY {
                    sends.push(comm.send_tagged_start(vec![me; 77], *to, ANY + 1).expect("started"));
                }
                if *to == me && *tag == ANY {
                    anys.push(comm.recv_any_tagged_start(vec![0; 77], ANY + 1).expect("started"));
                }
            }
            let mut expected: Vec<u32> =
                messages.iter().filter(|m| m.1 == me && m.2 == ANY).map(|m| m.0).collect();
            let mut sources: Vec<u32> = anys
                .into_iter()
                .map(|work| {
                    let (got, source) = work.wait().expect("received");
                    assert_eq!(got, vec![source; 77]);
                    source
                })
                .collect();
            expected.sort_unstable();
            sources.sort_unstable();
            assert_eq!(sources, expected);
            for (number, work) in receives {
                assert_eq!(work.wait().expect("received"), body(number), "message {number}");
            }
            for (number, (from, to, tag, len)) in messages.iter().enumerate() {
                if *to == me && *tag == ANY {
                    let mut got = vec![0; len + 1];
                    comm.recv_tagged(&mut got, *from, ANY).expect("received");
                    assert_eq!(got, body(number), "message {number}");
                }
            }
            for work in sends {
                work.wait().expect("sent");
            }
        }
    });
}
