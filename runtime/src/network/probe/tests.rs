//! Tests of the measurements, on links in virtual time.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// A link in virtual time. Each message carries the time at which it arrives.
struct Line {
    here: Duration,
    to: HashMap<u32, Sender<(Duration, Vec<u8>)>>,
    from: HashMap<u32, Receiver<(Duration, Vec<u8>)>>,
    latency: Duration,
    rate: f64,
    /// Bytes that may be in flight to each host. The number begins small and grows as a TCP connection's window does.
    windows: Option<HashMap<u32, f64>>,
    /// Share of every second exchange by which the process finishes late, because it has no CPU. Its kernel has room
    /// for the data that it sends.
    late: f64,
    is_second: bool,
    /// Number of messages that are received 4 ms late, because another process has the CPU.
    naps: u32,
    /// Whether the kernel takes all bytes at once, and sends them later.
    has_room: bool,
    /// Time at which the bytes that the kernel has taken have left.
    left_at: Duration,
    /// Number of messages sent so far: short ones and long ones.
    sent: [u32; 2],
    /// Whether a message, which is long or not and has this number, arrives 200 ms late.
    is_held_up: fn(bool, u32) -> bool,
}

impl Wire for Line {
    type Error = String;
    fn send(&mut self, host: u32, bytes: &[u8]) -> Result<(), String> {
        let round_trip = 2.0 * self.latency.as_secs_f64();
        let mut left = bytes.len() as f64;
        let mut takes = 0.0;
        while left > 0.0 {
            let window = self.windows.as_mut().map(|all| all.entry(host).or_insert(14_480.0));
            let burst = window.as_ref().map_or(left, |window| left.min(**window));
            left -= burst;
            let sends = burst / self.rate;
            takes += if left > 0.0 { sends.max(round_trip) } else { sends };
            if let Some(window) = window {
                *window += burst;
            }
        }
        self.left_at = self.here.max(self.left_at) + Duration::from_secs_f64(takes);
        if !self.has_room {
            self.here = self.left_at;
        }
        let is_long = bytes.len() > HEADER;
        let number = &mut self.sent[usize::from(is_long)];
        let held_up = Duration::from_millis(if (self.is_held_up)(is_long, *number) { 200 } else { 0 });
        *number += 1;
        self.to[&host]
            .send((self.left_at + self.latency + held_up, bytes.to_vec()))
            .map_err(|e| e.to_string())
    }
    fn recv(&mut self, host: u32, bytes: &mut [u8]) -> Result<(), String> {
        let (at, sent) = self.from[&host].recv().map_err(|e| e.to_string())?;
        self.here = self.here.max(at);
        if self.naps > 0 {
            self.naps -= 1;
            self.here += Duration::from_millis(4);
        }
        assert_eq!(sent.len(), bytes.len());
        bytes.copy_from_slice(&sent);
        Ok(())
    }
    fn exchange(&mut self, host: u32, out: &[u8], inward: &mut [u8]) -> Result<(), String> {
        let begun = self.here;
        self.send(host, out)?;
        let sent = std::mem::replace(&mut self.here, begun);
        self.recv(host, inward)?;
        if self.late == 0.0 {
            self.here = self.here.max(sent);
        } else if !self.is_second {
            self.here += (self.here - begun).mul_f64(self.late);
        }
        self.is_second = !self.is_second;
        Ok(())
    }
    fn now(&self) -> Duration {
        self.here
    }
}

fn lines(hosts: u32, latency: Duration, rate: impl Fn(u32) -> f64) -> Vec<Line> {
    let mut lines: Vec<Line> = (0..hosts)
        .map(|host| Line {
            here: Duration::ZERO,
            to: HashMap::new(),
            from: HashMap::new(),
            latency,
            rate: rate(host),
            windows: None,
            late: 0.0,
            is_second: false,
            naps: 0,
            has_room: false,
            left_at: Duration::ZERO,
            sent: [0; 2],
            is_held_up: |_, _| false,
        })
        .collect();
    for (from, to) in (0..hosts).flat_map(|a| (0..hosts).map(move |b| (a, b))) {
        let (sender, receiver) = channel();
        lines[from as usize].to.insert(to, sender);
        lines[to as usize].from.insert(from, receiver);
    }
    lines
}

fn measured(hosts: u32, latency: Duration, rate: impl Fn(u32) -> f64) -> (Vec<Sample>, Duration) {
    measured_on(lines(hosts, latency, rate))
}

fn measured_on(lines: Vec<Line>) -> (Vec<Sample>, Duration) {
    let hosts = lines.len() as u32;
    let running: Vec<_> = lines
        .into_iter()
        .enumerate()
        .map(|(host, mut line)| {
            std::thread::spawn(move || {
                let samples = probe(&mut line, host as u32, hosts).unwrap();
                (samples, line.here)
            })
        })
        .collect();
    let all: Vec<_> = running.into_iter().map(|thread| thread.join().unwrap()).collect();
    let latest = all.iter().map(|(_, here)| *here).max().unwrap();
    (all.into_iter().flat_map(|(samples, _)| samples).collect(), latest)
}

#[test]
fn links_are_found_as_they_are() {
    for hosts in [2, 3, 5, 8] {
        for (latency_us, rate) in [(25, 125e6), (10, 1e9), (1_000, 12.5e6), (20_000, 25e6)] {
            let latency = Duration::from_micros(latency_us);
            let (samples, _) = measured(hosts, latency, |_| rate);
            for host in 0..hosts {
                assert!(samples.iter().any(|sample| sample.touches(host)), "host {host} of {hosts}");
            }
            for sample in samples {
                let round_trip = 2.0 * latency.as_secs_f64();
                assert!((sample.round_trip_seconds / round_trip - 1.0).abs() < 0.1, "{sample:?}");
                assert!((sample.bytes_per_second / rate - 1.0).abs() < 0.1, "{sample:?} {rate}");
                assert!(sample.is_settled, "{sample:?}");
            }
        }
    }
}

#[test]
fn a_far_link_is_found_while_the_windows_of_its_connections_grow() {
    for (latency_ms, rate) in [(1, 125e6), (5, 25e6), (20, 25e6), (20, 2.5e6), (10, 125e6), (100, 12.5e6)] {
        let latency = Duration::from_millis(latency_ms);
        let mut lines = lines(2, latency, |_| rate);
        lines.iter_mut().for_each(|line| line.windows = Some(HashMap::new()));
        let (samples, took) = measured_on(lines);
        let found = samples[0].bytes_per_second / rate;
        assert!((0.75..1.25).contains(&found), "{latency_ms} ms, {rate}: {found}, {samples:?}");
        // On slow links the first message dominates the time.
        let bound = 30 * (2 * latency) + Duration::from_secs_f64(3.0 * FIRST_BYTES as f64 / rate);
        assert!(took < bound, "{latency_ms} ms, {rate}: {took:?}");
    }
}

/// Returns the rate of a thorough measurement from host 0 to host 1, and its time.
fn thorough(latency: Duration, rate: f64) -> (f64, Duration) {
    let mut lines = lines(2, latency, |_| rate);
    lines.iter_mut().for_each(|line| line.windows = Some(HashMap::new()));
    let (mut there, mut here) = (lines.pop().unwrap(), lines.pop().unwrap());
    let serves = std::thread::spawn(move || serve(&mut there, 0, &mut Buffers::new(&Effort::THOROUGH)));
    let mut buffers = Buffers::new(&Effort::THOROUGH);
    let found = super::rate(&mut here, 1, Way::Out, 2 * latency, &Effort::THOROUGH, &mut buffers).unwrap();
    end(&mut here, 1).unwrap();
    serves.join().unwrap().unwrap();
    (found, here.here)
}

#[test]
fn a_thorough_measurement_waits_until_the_window_of_a_far_path_is_open() {
    for (latency_ms, rate) in [(1, 125e6), (5, 125e6), (25, 125e6), (50, 125e6), (100, 12.5e6), (25, 1.25e6)]
    {
        let latency = Duration::from_millis(latency_ms);
        let (found, took) = thorough(latency, rate);
        assert!((0.75..1.25).contains(&(found / rate)), "{latency_ms} ms, {rate}: {found} in {took:?}");
        assert!(took < 40 * (2 * latency) + Duration::from_secs(1), "{latency_ms} ms, {rate}: {took:?}");
    }
}

#[test]
fn an_end_that_is_late_does_not_make_a_link_faster() {
    for late in [[0.4, 0.0], [0.0, 0.4]] {
        let mut lines = lines(2, Duration::from_millis(1), |_| 125e6);
        for (line, late) in lines.iter_mut().zip(late) {
            line.late = late;
        }
        let (samples, _) = measured_on(lines);
        let found = samples[0].bytes_per_second / 125e6;
        assert!((0.6..1.25).contains(&found), "{late:?}: {found}, {samples:?}");
    }
}

#[test]
fn a_busy_processor_does_not_make_a_path_long() {
    let mut lines = lines(2, Duration::from_micros(25), |_| 125e6);
    lines[1].naps = 6;
    let (samples, _) = measured_on(lines);
    assert!((samples[0].round_trip_seconds / 50e-6 - 1.0).abs() < 0.1, "{samples:?}");
}

#[test]
fn packets_that_are_sent_again_while_a_link_is_measured_make_it_neither_long_nor_slow() {
    // The first short message makes the connection.
    let all: [fn(bool, u32) -> bool; 5] = [
        |is_long, number| !is_long && number == 1,
        |is_long, number| !is_long && (1..3).contains(&number),
        |is_long, number| is_long && number < 1,
        |is_long, number| is_long && number < 2,
        |is_long, number| number == 1 || is_long && number < 3,
    ];
    for (case, is_held_up) in all.into_iter().enumerate() {
        for rate in [118e6, 12.5e6] {
            let mut lines = lines(2, Duration::from_micros(120), |_| rate);
            lines[0].is_held_up = is_held_up;
            let (samples, took) = measured_on(lines);
            let [sample] = &samples[..] else { panic!("{samples:?}") };
            assert!((sample.round_trip_seconds / 240e-6 - 1.0).abs() < 0.1, "case {case}: {sample:?}");
            assert!((sample.bytes_per_second / rate - 1.0).abs() < 0.1, "case {case}: {sample:?}");
            assert!(sample.is_settled && took < Duration::from_secs(1), "case {case}: {sample:?}, {took:?}");
        }
    }
}

#[test]
fn a_rate_that_no_message_shows_is_not_settled() {
    for latency in [Duration::from_micros(120), Duration::from_millis(5)] {
        let mut lines = lines(2, latency, |_| 118e6);
        lines[0].is_held_up = |is_long, _| is_long;
        let (samples, took) = measured_on(lines);
        assert!(!samples[0].is_settled && took < Duration::from_secs(2), "{samples:?}, {took:?}");
    }
}

#[test]
fn the_slower_end_of_a_link_counts() {
    let (samples, _) = measured(2, Duration::from_micros(25), |host| if host == 0 { 1e9 } else { 1e8 });
    assert!((samples[0].bytes_per_second / 1e8 - 1.0).abs() < 0.1, "{samples:?}");
}

#[test]
fn the_slower_direction_counts_even_if_the_kernel_takes_all_bytes_at_once() {
    for slow in [0, 1] {
        let mut lines = lines(2, Duration::from_micros(25), |host| if host == slow { 2.5e6 } else { 125e6 });
        lines.iter_mut().for_each(|line| line.has_room = true);
        let (samples, _) = measured_on(lines);
        let found = samples[0].bytes_per_second / 2.5e6;
        assert!((0.9..1.1).contains(&found), "host {slow}: {found}, {samples:?}");
        assert!(samples[0].is_settled, "host {slow}: {samples:?}");
    }
}

#[test]
fn every_host_meets_two_others_in_few_rounds() {
    for hosts in 3..70_u32 {
        for host in 0..hosts {
            let met: Vec<u32> = partners(host, hosts).collect();
            assert!(met.len() >= 2 && met.len() as u32 <= hosts.ilog2() + 2, "{host} of {hosts}: {met:?}");
            for partner in met {
                assert!(
                    partners(partner, hosts).filter(|other| *other == host).count() == 1,
                    "{host} of {hosts}"
                );
            }
        }
    }
    assert_eq!(partners(0, 1).count(), 0);
    assert!(partners(0, 2).eq([1]) && partners(1, 2).eq([0]));
}

#[test]
fn a_local_network_is_measured_within_50_ms() {
    for (hosts, rate) in [(2, 12.5e6), (3, 125e6), (8, 125e6), (9, 125e6), (64, 1.25e9), (65, 1.25e9)] {
        let (_, took) = measured(hosts, Duration::from_micros(25), |_| rate);
        assert!(took < Duration::from_millis(50), "{hosts} hosts, {rate}: {took:?}");
    }
}

#[test]
fn one_host_measures_nothing() {
    assert_eq!(measured(1, Duration::ZERO, |_| 1.0).0, []);
}
