//! Measures the throughput of a forwarded port.
//!
//! Invariant: for both runtimes the server is the same program in the pod's network namespace on
//! the node, and the client is crictl. A pod of ours has no guest meanwhile: a link stands in for
//! its network card, behind the bridge of the pod as the guest is.
//! Failure: a transfer that ended early.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::bench::Stack;
use e2e::samples::Samples;
use e2e::{eventually, v1};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::listener::{self, BYTES, PORT};
use crate::sides::{Side, Sides};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Local ports of the two clients.
const LOCAL: [u16; 2] = [18_000, 18_001];

/// `count` transfers each way.
pub(crate) async fn measure(
    stack: &Stack,
    image: &str,
    tools: &str,
    count: u32,
) -> Result<Samples> {
    let sides = Sides::connect(stack, image, tools).await?;
    let pod = sides.pod(stack, "forward")?;
    let mut samples = Samples::default();
    samples.number("bytes", f64::from(u32::try_from(BYTES)?));
    let mut ways = Vec::new();
    let mut held = Vec::new();
    for (side, local) in sides.in_turn(0).into_iter().zip(LOCAL) {
        let sandbox = side.cri.run(pod.sandbox()).await.context("RunPodSandbox")?;
        let ip = side.cri.ip(&sandbox).await?;
        let netns = namespace(stack, side, &sandbox).await?;
        if side.name == "vmlet" {
            listener::stand_in(&netns, &ip).await?;
        }
        let server = listener::start(stack, &netns).await?;
        let client = crictl(stack, side, &sandbox, local)?;
        ways.push((
            format!("forward_{}", side.name),
            format!("127.0.0.1:{local}"),
        ));
        ways.push((format!("plain_{}", side.name), format!("{ip}:{PORT}")));
        held.push((side, sandbox, server, client));
    }
    for number in 0..=count {
        for (name, address) in &ways {
            let speed = transfer(address.parse()?).await.context(name.clone())?;
            if number > 0 {
                samples.number(name.clone(), speed);
            }
        }
    }
    for (side, sandbox, mut server, mut client) in held {
        client.kill().await?;
        server.kill().await?;
        side.take_away(&sandbox).await?;
    }
    Ok(samples)
}

/// Megabytes a second of one connection.
async fn transfer(server: SocketAddr) -> Result<f64> {
    let connect = || async { Ok(TcpStream::connect(server).await?) };
    let mut stream = eventually(TIMEOUT, "a connection", connect).await?;
    let begun = Instant::now();
    let mut block = vec![0; 1 << 18];
    let mut received = 0;
    loop {
        match stream.read(&mut block).await? {
            0 => break,
            length => received += length,
        }
    }
    let took = begun.elapsed();
    ensure!(received == BYTES, "{received} bytes of {BYTES}");
    Ok(f64::from(u32::try_from(received)?) / 1e6 / took.as_secs_f64())
}

/// The network namespace of a pod.
async fn namespace(stack: &Stack, side: &Side, sandbox: &str) -> Result<PathBuf> {
    if side.name == "vmlet" {
        return Ok(stack.path(&format!("netns/vmlet-{sandbox}")));
    }
    let request = v1::PodSandboxStatusRequest {
        pod_sandbox_id: sandbox.to_owned(),
        verbose: true,
    };
    let mut runtime = side.cri.runtime.clone();
    let answer = runtime.pod_sandbox_status(request).await?.into_inner();
    let info = answer.info.get("info").context("no verbose status")?;
    let info: serde_json::Value = serde_json::from_str(info)?;
    let pid = info["pid"].as_u64().context("no pid")?;
    Ok(format!("/proc/{pid}/ns/net").into())
}

fn crictl(stack: &Stack, side: &Side, sandbox: &str, local: u16) -> Result<Child> {
    let socket = stack.path(&format!("run/{}.sock", side.name));
    let endpoint = format!("unix://{}", socket.display());
    Command::new("crictl")
        .args(["-r", &endpoint, "-i", &endpoint, "port-forward", sandbox])
        .arg(format!("{local}:{PORT}"))
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("start crictl")
}
