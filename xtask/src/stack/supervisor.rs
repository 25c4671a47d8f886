//! Owns the programs of one stack: starts and stops them on request, collects whatever dies below
//! it.
//!
//! Invariant: it is the reaper of all descendants and collects at once, since libvirt waits until a
//! QEMU that it killed has really ended; a program that ended is started only on request.
//! Failure: when it is killed the programs live on without a reaper; `down` still finds them by
//! their pid files.

mod children;

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, mpsc};

use anyhow::{Context, Result};
use nix::sys::prctl;
use nix::unistd::{Pid, setsid};

use self::children::Children;
use super::control::{self, Ports, Reply, Request};
use super::{Layout, Record, cluster, http};
use crate::workspace;

/// Serves until it receives a quit request. Prints its ports on stdout when all is ready.
pub(crate) fn run(layout: Layout) -> Result<()> {
    // Fails only for the leader of a process group, which we then are anyway.
    let _ = setsid();
    prctl::set_child_subreaper(true).context("become the reaper of orphans")?;
    let listener = UnixListener::bind(layout.supervisor_socket()).context("listen")?;
    let Record {
        node, http_port, ..
    } = Record::read(&layout)?;
    if node.is_some() {
        // While there is only one thread. All programs inherit it.
        cluster::enter_view(&layout).context("the node's mount namespace")?;
    }
    // Only the tests that use the others need them to exist.
    let files = [
        workspace::guest_image(),
        workspace::uefi_image(),
        workspace::generic_image(),
        workspace::debian_image(),
    ];
    let images = http::serve(&layout, &files, http_port).context("image server")?;
    let api = match node {
        Some(node) if node.is_control() => {
            cluster::forward(&layout, node.api_port).context("API forwarder")?
        }
        _ => 0,
    };
    fs::write(layout.pid_file("supervisor"), format!("{}\n", Pid::this()))?;

    let children = Arc::new(Children::new(layout));
    let reaper = Arc::clone(&children);
    std::thread::Builder::new()
        .name("reaper".to_owned())
        .spawn(move || reaper.collect())?;
    let (quit, quitting) = mpsc::channel();
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || accept(&listener, &children, &quit))?;

    println!("{}", serde_json::to_string(&Ports { images, api })?);
    // Also ends when the control thread has ended: without it no client could stop us.
    let _ = quitting.recv();
    Ok(())
}

fn accept(listener: &UnixListener, children: &Arc<Children>, quit: &mpsc::Sender<()>) {
    for stream in listener.incoming().flatten() {
        let children = Arc::clone(children);
        let quit = quit.clone();
        std::thread::spawn(move || {
            if let Err(error) = converse(stream, &children, &quit) {
                eprintln!("supervisor: {error:#}");
            }
        });
    }
}

fn converse(mut stream: UnixStream, children: &Children, quit: &mpsc::Sender<()>) -> Result<()> {
    let request: Request = control::receive(&stream)?;
    let outcome = match request {
        Request::Start(program) => children.start(program).map(|()| None),
        Request::Stop(program) => children.stop(program, program.grace()).map(|()| None),
        Request::Watch(program, time) => Ok(children.wait_for_end(program, time)),
        Request::Status | Request::Quit => Ok(None),
    };
    let mut reply = Reply {
        running: children.running(),
        supervisor: Pid::this().as_raw(),
        ..Reply::default()
    };
    match outcome {
        Ok(ended) => reply.ended = ended,
        Err(error) => reply.error = Some(format!("{error:#}")),
    }
    control::send(&mut stream, &reply)?;
    if matches!(request, Request::Quit) {
        quit.send(())?;
    }
    Ok(())
}
