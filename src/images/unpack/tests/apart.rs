//! This program as the decoder of other processes: tests start it again, confined.
//!
//! Invariant: what a decoder gives is compared with what this process makes of the same file.
//! Failure: the words or the bytes that differ.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::AsFd as _;

use clap::ValueEnum as _;

use super::*;
use crate::helper::{FIRST_USER, Helper};
use crate::images::unpack::apart::Decoder;
use crate::images::unpack::beginning::BEGINNING;

/// The test that is the decoder.
const ITSELF: &str = "images::unpack::tests::apart::the_decoder_of_the_other_tests";

/// Begins the argument that says what it does.
const MARK: &str = "decoder-does-";

/// Without such an argument nothing is to be done.
#[test]
fn the_decoder_of_the_other_tests() {
    let does = std::env::args().find_map(|one| one.strip_prefix(MARK).map(str::to_owned));
    let Some(does) = does else { return };
    let mut socket = File::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
    match does.as_str() {
        "crash" => std::process::abort(),
        "leave" => {}
        "lie" => socket.write_all(&[1; 9]).unwrap(),
        "repeat" => {
            for frame in [
                Frame::Disk(None),
                Frame::End,
                Frame::Disk(None),
                Frame::End,
                Frame::Done(true),
            ] {
                frame.write(&mut socket).unwrap();
            }
        }
        "hang" => {
            let mut all = Vec::new();
            // The other side never ends it.
            socket.read_to_end(&mut all).unwrap();
        }
        work => {
            decoder::run(Work::from_str(work, false).unwrap());
        }
    }
}

fn arguments(does: &str) -> Vec<OsString> {
    let mark = format!("{MARK}{does}");
    ["--exact", ITSELF, "--nocapture", &mark]
        .map(Into::into)
        .into()
}

fn program(arguments: fn(Work) -> Vec<OsString>) -> Program {
    let helper = Helper::own().unwrap();
    Program { helper, arguments }
}

/// What decodes as the daemon's does.
fn honest() -> Program {
    program(|work| arguments(work.to_possible_value().unwrap().get_name()))
}

/// On a thread that may wait.
async fn wait<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

async fn run_apart(program: Program, bytes: Vec<u8>, shape: Shape, max_bytes: u64) -> Unpacked {
    wait(move || {
        run_by(&bytes, max_bytes, |file, disk, limits| {
            unpack_apart(&program, file, shape, disk, limits)
        })
    })
    .await
}

#[tokio::test]
async fn a_decoder_gives_what_this_process_makes_of_a_file() {
    let disk = disk();
    let layer = archive_with("disk/a.img.xz", &packed("xz", &disk));
    for (bytes, shape) in [
        (packed("gzip", &disk), Shape::Disk),
        (packed("xz", &disk), Shape::Disk),
        (packed("zstd", &disk), Shape::Disk),
        (packed("gzip", &layer), Shape::Layer),
        (archive_with("disk/a.img", &disk), Shape::Layer),
    ] {
        let here = run(&bytes, shape, 1 << 30);
        let apart = run_apart(honest(), bytes, shape, 1 << 30).await;
        assert!(matches!(apart.outcome, Ok(true)), "{:?}", apart.outcome);
        assert_eq!(apart.digest, here.digest);
        assert_eq!(apart.length, disk.len() as u64);
    }
    let none = archive(&[("bin/", b""), ("bin/sh", b"#!")]);
    let none = run_apart(honest(), none, Shape::Layer, 1 << 30).await;
    assert!(matches!(none.outcome, Ok(false)), "{:?}", none.outcome);
}

#[tokio::test]
async fn a_decoder_refuses_in_the_words_of_this_process() {
    let sector = [0xeb; 512];
    let gzip = packed("gzip", &disk());
    let encrypted = [b"LUKS\xba\xbe".as_slice(), &[0; 1024]].concat();
    for (bytes, shape, most) in [
        (gzip[..gzip.len() / 2].to_vec(), Shape::Disk, 1 << 30),
        (packed("xz", &vec![0; 64 << 20]), Shape::Disk, 8 << 20),
        (packed("gzip", &encrypted), Shape::Disk, 1 << 30),
        (
            archive(&[("disk/a.img", &sector), ("disk/b.img", &sector)]),
            Shape::Layer,
            1 << 30,
        ),
    ] {
        let here = run(&bytes, shape, most).reason();
        let apart = run_apart(honest(), bytes, shape, most).await;
        assert_eq!(apart.reason(), here);
    }
}

#[tokio::test]
async fn the_beginning_of_a_file_is_what_this_process_sees() {
    let disk = disk();
    let layer = archive_with("disk/a.img", &disk);
    let beginning = layer[..256 << 10].to_vec();
    let here = head_here(&beginning, Shape::Layer).unwrap();
    let apart = wait(move || honest().answer(Work::LayerHead, beginning, BEGINNING)).await;
    assert_eq!(apart.unwrap(), Some(here));
    let nothing = wait(|| honest().answer(Work::DiskHead, vec![7; 512], BEGINNING)).await;
    assert_eq!(nothing.unwrap().unwrap().head, [7; 512]);

    let mut cluster = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    cluster.write_all(&disk[..64 << 10]).unwrap();
    // The rest of its last sector.
    let cluster = [cluster.finish().unwrap(), vec![0xff; 100]].concat();
    let apart = wait(move || honest().answer(Work::Deflate, cluster, decoder::CLUSTER)).await;
    assert_eq!(apart.unwrap().unwrap().head, disk[..64 << 10]);
}

#[tokio::test]
async fn a_decoder_that_its_input_has_taken_over_fails_its_image_alone() {
    let bytes = packed("gzip", &disk());
    for (program, reason) in [
        (program(|_| arguments("crash")), "its decoder crashed"),
        (program(|_| arguments("lie")), "makes no sense"),
    ] {
        let failed = run_apart(program, bytes.clone(), Shape::Disk, 1 << 30).await;
        let is_content = matches!(failed.outcome, Err(Error::Content { .. }));
        let text = failed.reason();
        assert!(is_content && text.contains(reason), "{text}");
    }
    // The first disk is judged: it is none.
    let twice = program(|_| arguments("repeat"));
    run_apart(twice, bytes, Shape::Disk, 1 << 30).await.reason();
}

/// Its download is kept, and the pull repeated.
#[tokio::test]
async fn a_decoder_that_the_node_may_have_ended_says_nothing_of_the_image() {
    let bytes = packed("gzip", &disk());
    let missing = Helper::new("/no/such/decoder", FIRST_USER);
    let missing = Program {
        helper: missing,
        arguments: |_| Vec::new(),
    };
    for (program, reason) in [
        (missing, "failed to start its decoder"),
        (
            program(|_| arguments("leave")),
            "its decoder ended without an answer",
        ),
    ] {
        let failed = run_apart(program, bytes.clone(), Shape::Disk, 1 << 30).await;
        let is_decoder =
            matches!(&failed.outcome, Err(e @ Error::Decoder { .. }) if e.is_passing());
        let text = failed.reason();
        assert!(is_decoder && text.contains(reason), "{text}");
    }
}

/// Ends with an error where a download would.
struct Cut<R>(R);

impl<R: Read> Read for Cut<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer)? {
            0 => Err(io::Error::other("the download ended early")),
            read => Ok(read),
        }
    }
}

#[tokio::test]
async fn an_input_that_ends_early_goes_before_what_a_decoder_makes_of_it() {
    let bytes = packed("gzip", &disk());
    let cut = bytes[..bytes.len() / 2].to_vec();
    let failed = wait(move || {
        run_by(&cut, 1 << 30, |file, disk, limits| {
            unpack_apart(&honest(), Cut(file), Shape::Disk, disk, limits)
        })
    });
    let failed = failed.await;
    let is_decoder = matches!(failed.outcome, Err(Error::Decoder { .. }));
    let text = failed.reason();
    assert!(
        is_decoder && text.contains("the download ended early"),
        "{text}"
    );
}

/// For a reader of archives, one without an end is whole between two entries.
#[tokio::test]
async fn a_layer_that_ends_early_is_none_without_a_disk() {
    let mut layer = archive(&[("etc/motd", &[7; 1024])]);
    let end = layer.len() - 1024;
    assert!(layer[end..].iter().all(|byte| *byte == 0), "no end");
    layer.truncate(end);
    let whole = run_apart(honest(), layer.clone(), Shape::Layer, 1 << 30).await;
    assert!(matches!(whole.outcome, Ok(false)), "{:?}", whole.outcome);
    let cut = wait(move || {
        run_by(&layer, 1 << 30, |file, disk, limits| {
            unpack_apart(&honest(), Cut(file), Shape::Layer, disk, limits)
        })
    });
    let cut = cut.await.outcome;
    assert!(matches!(cut, Err(Error::Decoder { .. })), "{cut:?}");
}

fn hanging(stopping: CancellationToken) -> Decoder {
    let program = program(|_| arguments("hang"));
    // Its input never ends.
    let (input, writer) = io::pipe().unwrap();
    std::mem::forget(writer);
    program.start(Work::Disk, input, 1 << 30, stopping).unwrap()
}

#[tokio::test]
async fn a_daemon_that_stops_waits_for_no_decoder() {
    let stopping = CancellationToken::new();
    let token = stopping.clone();
    let mut decoder = wait(move || hanging(token)).await;
    let waiting = tokio::task::spawn_blocking(move || decoder.read(&mut [0; 1]));
    stopping.cancel();
    let ended = waiting.await.unwrap().unwrap_err();
    assert!(ended.to_string().contains("the daemon stops"), "{ended}");

    let bytes = packed("gzip", &disk());
    let stopped = wait(move || {
        let program = program(|_| arguments("hang"));
        run_by(&bytes, 1 << 30, |_, disk, limits| {
            let (input, writer) = io::pipe().unwrap();
            limits.stopping.cancel();
            let stopped = unpack_apart(&program, input, Shape::Layer, disk, limits);
            drop(writer);
            stopped
        })
    });
    let stopped = stopped.await.outcome;
    assert!(matches!(stopped, Err(Error::Stopping)), "{stopped:?}");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_decoder_is_confined_as_every_helper() {
    let decoders = wait(|| [0, 1].map(|_| hanging(CancellationToken::new()))).await;
    let users = decoders.each_ref().map(|decoder| {
        let pid = decoder.id().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        assert_eq!(line("CapEff:"), "0000000000000000");
        assert_eq!(line("Seccomp:"), "2");
        let net = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        assert_ne!(net(&pid.to_string()), net("self"));
        line("Uid:").parse::<u32>().unwrap()
    });
    assert_ne!(users[0], users[1]);
    assert!(users.iter().all(|user| *user >= FIRST_USER));
}
