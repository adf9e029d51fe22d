// SPDX-License-Identifier: GPL-2.0

//! The patterns.

use std::{
    hint::black_box,
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    process::Command,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, Scope, ScopedJoinHandle, Thread},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use nix::sys::prctl;

use crate::Metric;

/// Executes so many thousand turns of a loop.
pub fn compute(thousands: u64) -> u64 {
    (0..1000 * thousands).fold(0_u64, |sum, turn| black_box(sum.wrapping_add(turn)))
}

/// Nanoseconds since `start`, at least 1.
fn now(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos())
        .unwrap_or(u64::MAX)
        .max(1)
}

/// The result of a thread; its panic is ours.
fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Starts `n` threads of `body`, which gets its number.
fn threads<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    n: usize,
    body: impl Fn(usize) -> T + Copy + Send + 'scope,
) -> Vec<ScopedJoinHandle<'scope, T>> {
    (0..n)
        .map(|number| scope.spawn(move || body(number)))
        .collect()
}

/// A worker's side of the exchange with its message thread.
#[derive(Default)]
struct Post {
    /// When it was woken, in nanoseconds; 0 when there is nothing to do.
    woken: AtomicU64,
    waits: AtomicBool,
}

/// See `wakeups` on the command line. A wakeup's latency is from just before the wakeup to when the
/// worker runs, a request's from there to its end.
pub fn wakeups(
    messages: usize,
    workers: usize,
    time: Duration,
    work: u64,
    sleep: Duration,
) -> Result<Vec<Metric>> {
    ensure!(messages > 0 && workers > 0, "there is nobody to wake");
    let start = Instant::now();
    let stop = AtomicBool::new(false);
    let posts: Vec<Vec<Post>> = (0..messages)
        .map(|_| (0..workers).map(|_| Post::default()).collect())
        .collect();
    let worker = |post: &Post, messenger: &Thread| {
        let (mut wakeups, mut requests) = (Vec::new(), Vec::new());
        loop {
            post.waits.store(true, Ordering::Release);
            messenger.unpark();
            let woken = loop {
                match post.woken.swap(0, Ordering::Acquire) {
                    0 if stop.load(Ordering::Relaxed) => return (wakeups, requests),
                    0 => thread::park(),
                    woken => break woken,
                }
            };
            let runs = now(start);
            wakeups.push(runs - woken);
            compute(work);
            thread::sleep(sleep);
            compute(work);
            requests.push(now(start) - runs);
        }
    };
    let worker = &worker;
    let messenger = |number: usize| {
        let posts = &posts[number];
        let me = &thread::current();
        thread::scope(|scope| {
            let handles: Vec<_> = posts
                .iter()
                .map(|post| scope.spawn(move || worker(post, me)))
                .collect();
            while !stop.load(Ordering::Relaxed) {
                for (post, handle) in posts.iter().zip(&handles) {
                    if post.waits.swap(false, Ordering::Acquire) {
                        post.woken.store(now(start), Ordering::Release);
                        handle.thread().unpark();
                    }
                }
                thread::park();
            }
            handles.iter().for_each(|handle| handle.thread().unpark());
            handles.into_iter().map(join).collect::<Vec<_>>()
        })
    };
    let messenger = &messenger;
    let results: Vec<_> = thread::scope(|scope| {
        let handles = threads(scope, messages, messenger);
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        handles.iter().for_each(|handle| handle.thread().unpark());
        handles.into_iter().flat_map(join).collect()
    });
    let took = start.elapsed();
    let (wakeups, requests): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    let (wakeups, requests) = (wakeups.concat(), requests.concat());
    let count = requests.len() as u64;
    let mut metrics = Metric::percentiles("wakeup", wakeups);
    metrics.extend(Metric::percentiles("request", requests));
    metrics.push(Metric::rate("requests", count, took));
    Ok(metrics)
}

/// One end of a connection.
pub trait Channel: Send {
    fn send(&mut self, byte: u8) -> Result<()>;
    /// Waits for a byte.
    fn receive(&mut self) -> Result<u8>;
}

impl Channel for UdpSocket {
    fn send(&mut self, byte: u8) -> Result<()> {
        UdpSocket::send(self, &[byte])?;
        Ok(())
    }

    fn receive(&mut self) -> Result<u8> {
        let mut byte = [0];
        self.recv(&mut byte)?;
        Ok(byte[0])
    }
}

impl Channel for TcpStream {
    fn send(&mut self, byte: u8) -> Result<()> {
        Ok(self.write_all(&[byte])?)
    }

    fn receive(&mut self) -> Result<u8> {
        let mut byte = [0];
        self.read_exact(&mut byte)?;
        Ok(byte[0])
    }
}

/// A client and a server over UDP.
pub fn udp() -> Result<[UdpSocket; 2]> {
    let socket = || UdpSocket::bind("127.0.0.1:0").context("no socket for UDP");
    let (client, server) = (socket()?, socket()?);
    client.connect(server.local_addr()?)?;
    server.connect(client.local_addr()?)?;
    Ok([client, server])
}

/// A client and a server over TCP.
pub fn tcp() -> Result<[TcpStream; 2]> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no socket for TCP")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok([client, server])
}

/// The byte that ends a server.
const LAST: u8 = 1;

/// See `pairs` on the command line. A trip is from before the client sends until it has the answer.
pub fn pairs<C: Channel>(
    connect: fn() -> Result<[C; 2]>,
    pairs: usize,
    time: Duration,
) -> Result<Vec<Metric>> {
    ensure!(pairs > 0, "there is nobody to ask");
    let ends = (0..pairs).map(|_| connect()).collect::<Result<Vec<_>>>()?;
    let ready = Barrier::new(pairs);
    let ready = &ready;
    let start = Instant::now();
    let trips: Vec<Vec<u64>> = thread::scope(|scope| {
        let mut clients = Vec::new();
        let mut servers = Vec::new();
        for [mut client, mut server] in ends {
            servers.push(scope.spawn(move || -> Result<()> {
                loop {
                    let byte = server.receive()?;
                    server.send(byte)?;
                    if byte == LAST {
                        return Ok(());
                    }
                }
            }));
            clients.push(scope.spawn(move || -> Result<Vec<u64>> {
                let mut trips = Vec::new();
                ready.wait();
                let start = Instant::now();
                let mut sent = 0;
                while sent < time.as_nanos() as u64 {
                    client.send(0)?;
                    client.receive()?;
                    let answered = now(start);
                    trips.push(answered - sent);
                    sent = answered;
                }
                client.send(LAST)?;
                client.receive()?;
                Ok(trips)
            }));
        }
        servers.into_iter().try_for_each(join)?;
        clients.into_iter().map(join).collect::<Result<_>>()
    })?;
    let took = start.elapsed();
    let trips = trips.concat();
    let mut metrics = vec![Metric::rate("trips", trips.len() as u64, took)];
    metrics.extend(Metric::percentiles("trip", trips));
    Ok(metrics)
}

/// See `build` on the command line.
pub fn build(jobs: usize, tasks: usize, work: u64) -> Result<Vec<Metric>> {
    ensure!(jobs > 0, "nobody builds");
    let begun = AtomicUsize::new(0);
    let start = Instant::now();
    let job = |_| -> Result<()> {
        while begun.fetch_add(1, Ordering::Relaxed) < tasks {
            let mut task = Command::new("/proc/self/exe");
            let status = task.args(["work", &work.to_string()]).status()?;
            ensure!(status.success(), "a task failed: {status}");
        }
        Ok(())
    };
    let job = &job;
    thread::scope(|scope| threads(scope, jobs, job).into_iter().try_for_each(join))?;
    Ok(vec![Metric::time("time", start.elapsed())])
}

/// The shortest and longest sleep of a sleeper, in microseconds.
const SLEEP_US: std::ops::Range<u64> = 200..1000;

/// See `mix` on the command line. A sleeper is late from when it wanted to wake to when it runs.
pub fn mix(sleepers: usize, hogs: usize, time: Duration, work: u64) -> Result<Vec<Metric>> {
    ensure!(sleepers > 0, "nobody sleeps");
    let stop = AtomicBool::new(false);
    let stop = &stop;
    let start = Instant::now();
    let sleeper = |number: usize| -> Vec<u64> {
        // Otherwise the kernel may wake it later, to save an interrupt.
        let _ = prctl::set_timerslack(1);
        let mut random = fastrand::Rng::with_seed(number as u64);
        let mut late = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let sleep = Duration::from_micros(random.u64(SLEEP_US));
            let asleep = Instant::now();
            thread::sleep(sleep);
            late.push(now(asleep).saturating_sub(sleep.as_nanos() as u64));
            compute(work);
        }
        late
    };
    let hog = |_| -> u64 {
        let mut turns = 0;
        while !stop.load(Ordering::Relaxed) {
            compute(1);
            turns += 1000;
        }
        turns
    };
    let (sleeper, hog) = (&sleeper, &hog);
    let (late, turns) = thread::scope(|scope| {
        let hogs = threads(scope, hogs, hog);
        let sleepers = threads(scope, sleepers, sleeper);
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let late: Vec<_> = sleepers.into_iter().flat_map(join).collect();
        (late, hogs.into_iter().map(join).sum::<u64>())
    });
    let took = start.elapsed();
    let count = late.len() as u64;
    let mut metrics = Metric::percentiles("late", late);
    metrics.push(Metric::rate("wakeups", count, took));
    if hogs > 0 {
        metrics.push(Metric::rate("hog_turns", turns, took));
    }
    Ok(metrics)
}
