//! Hundreds of machines that ignore their power button, stopped all at once.
//!
//! Invariant: the machines are real emulators whose guest is a boot sector that halts the processor.
//! Their graces end at about the same time. Meanwhile a guest that is well starts and answers, and
//! lists answer within kubelet's time for them.
//! Failure: the request that came late, or what is left. The times are printed, not judged.

#![allow(clippy::print_stdout, reason = "the numbers are part of the result")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{Cri, PodOptions, Stack, in_time, v1};
use tokio::task::JoinSet;

/// How many machines, unless the variable of this name says otherwise.
const MACHINES: usize = 300;
const VARIABLE: &str = "VMLET_TEST_STOPS";
/// Starts at a time: kubelet limits them, too.
const STARTERS: usize = 8;
/// Seconds that a guest has to power off.
const GRACE: i64 = 20;
/// The least that a machine can have.
const SMALL_MIB: u32 = 32;
/// What kubelet gives a request.
const REQUEST: Duration = Duration::from_secs(120);
/// kubelet adds the grace to it for a stop.
const STOP: Duration = Duration::from_secs(140);
const STARTS: Duration = Duration::from_secs(1800);
/// What a probe takes at most by default counts in seconds; a guest by software emulation is slow.
const PROBE: i64 = 60;

/// How long requests took, by their names.
type Samples = BTreeMap<&'static str, Vec<Duration>>;

/// `cli; again: hlt; jmp again`
const HALT: [u8; 4] = [0xfa, 0xf4, 0xeb, 0xfd];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_node_answers_while_hundreds_of_graces_end() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    let (well, healthy) = cri
        .boot(&PodOptions::named("healthy", &stack), &image)
        .await?;
    cri.await_agent(&healthy).await?;
    let halted = serve_halted(&stack)?;
    cri.pull(&halted).await?;
    let begun = Instant::now();
    let starts = start_all(&stack, &cri, &halted);
    let machines = in_time(STARTS, "all starts", Box::pin(starts)).await?;
    println!(
        "{} machines started in {:?}",
        machines.len(),
        begun.elapsed()
    );

    let begun = Instant::now();
    let mut stops = JoinSet::new();
    for (sandbox, container) in &machines {
        let cri = cri.clone();
        let sandbox = sandbox.clone();
        let container = container.clone();
        stops.spawn(async move {
            let repeated = stop(&cri, &container).await?;
            let killed = begun.elapsed();
            let stop = async { Ok(cri.stop_pod(&sandbox).await?) };
            in_time(REQUEST, "StopPodSandbox", stop).await?;
            Ok::<_, anyhow::Error>((killed, begun.elapsed(), repeated))
        });
    }
    let mut samples = Samples::default();
    let mut ended = Vec::new();
    let mut round = 0;
    while ended.len() < machines.len() {
        look(&cri, &healthy, machines.len(), &mut samples).await?;
        if round % 4 == 0 {
            live(&stack, &cri, &image, round, &mut samples).await?;
        }
        round += 1;
        while let Some(stopped) = stops.try_join_next() {
            ended.push(stopped??);
        }
    }
    let killed = ended.iter().map(|(killed, ..)| killed);
    let range = killed.clone().min().zip(killed.max());
    let last = ended.iter().map(|(_, stopped, _)| stopped).max();
    let repeated: usize = ended.iter().map(|(.., repeated)| repeated).sum();
    println!("StopContainer took {range:?}, the last StopPodSandbox ended after {last:?}");
    println!("{repeated} StopContainer were repeated; {round} rounds of requests beside them");
    print(&mut samples);

    let begun = Instant::now();
    for (sandbox, _) in &machines {
        in_time(REQUEST, "RemovePodSandbox", async {
            Ok(cri.remove_pod(sandbox).await?)
        })
        .await?;
    }
    println!("removed in {:?}", begun.elapsed());
    ensure!(cri.shell(&healthy, "echo well").await? == "well");
    cri.stop(&healthy, 60).await?;
    cri.remove_pod(&well).await?;
    ensure!(cri.sandboxes().await?.is_empty(), "sandboxes are left");
    stack.await_clean().await?;
    stack.down()
}

/// Stops a container as kubelet does, which repeats a request whose kill is not confirmed in time; how
/// often that was.
async fn stop(cri: &Cri, container: &str) -> Result<usize> {
    let mut repeated = 0;
    loop {
        let stopped = in_time(STOP, "StopContainer", async {
            Ok(cri.stop(container, GRACE).await)
        });
        match stopped.await? {
            Ok(()) => return Ok(repeated),
            Err(status) if status.message().contains("its end is not confirmed") => repeated += 1,
            Err(status) => return Err(status.into()),
        }
    }
}

/// Puts the disk of the guests on the image server of the stack; the name of the image.
fn serve_halted(stack: &Stack) -> Result<String> {
    let mut disk = vec![0; 1 << 20];
    disk[..HALT.len()].copy_from_slice(&HALT);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    let served = stack.dir().join("served");
    std::fs::create_dir_all(&served)?;
    std::fs::write(served.join("halted.img"), disk)?;
    let server = stack.var("VMLET_TEST_IMAGE_URL")?;
    let (server, _) = server.rsplit_once('/').context("a URL has a path")?;
    Ok(format!(
        "{}/halted.img",
        server.trim_start_matches("http://")
    ))
}

/// Starts the machines, some at a time; their sandboxes and containers.
async fn start_all(stack: &Stack, cri: &Cri, image: &str) -> Result<Vec<(String, String)>> {
    let number = std::env::var(VARIABLE).ok();
    let number = number.map_or(Ok(MACHINES), |text| text.parse())?;
    let mut starters = JoinSet::new();
    for first in 0..STARTERS {
        let pods: Vec<_> = (first..number)
            .step_by(STARTERS)
            .map(|one| PodOptions {
                memory_mib: Some(SMALL_MIB),
                ..PodOptions::named(&format!("halted-{one}"), stack)
            })
            .collect();
        let cri = cri.clone();
        let image = image.to_owned();
        starters.spawn(async move {
            let mut machines = Vec::new();
            for pod in pods {
                machines.push(cri.boot(&pod, &image).await.context(pod.name)?);
            }
            Ok::<_, anyhow::Error>(machines)
        });
    }
    let mut machines = Vec::new();
    while let Some(started) = starters.join_next().await {
        machines.extend(started??);
    }
    Ok(machines)
}

/// What kubelet asks for all the time, and a probe.
async fn look(cri: &Cri, healthy: &str, least: usize, samples: &mut Samples) -> Result<()> {
    let sandboxes = timed(samples, "ListPodSandbox", async {
        Ok(cri.sandboxes().await?)
    });
    let sandboxes = sandboxes.await?.len();
    ensure!(sandboxes > least, "{sandboxes} sandboxes are listed");
    let containers = timed(samples, "ListContainers", async {
        Ok(cri.containers().await?)
    });
    ensure!(containers.await?.len() > least);
    timed(samples, "Status", cri.check_ready()).await?;
    let request = v1::ContainerStatsRequest {
        container_id: healthy.to_owned(),
    };
    timed(samples, "ContainerStats", async {
        let stats = cri.runtime.clone().container_stats(request).await?;
        stats.into_inner().stats.context("no statistics")
    })
    .await?;
    timed(samples, "ExecSync", async {
        let answer = cri.exec(healthy, &["true"], PROBE).await?;
        ensure!(answer.exit_code == 0, "{answer:?}");
        Ok(())
    })
    .await
}

/// A pod starts, and goes again.
async fn live(
    stack: &Stack,
    cri: &Cri,
    image: &str,
    number: usize,
    samples: &mut Samples,
) -> Result<()> {
    let pod = PodOptions::named(&format!("beside-{number}"), stack);
    let started = timed(samples, "start of a pod", Box::pin(cri.boot(&pod, image)));
    let (sandbox, container) = started.await?;
    timed(samples, "end of a pod", async {
        cri.stop(&container, 0).await?;
        cri.stop_pod(&sandbox).await?;
        Ok(cri.remove_pod(&sandbox).await?)
    })
    .await
}

async fn timed<T>(
    samples: &mut Samples,
    what: &'static str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let begun = Instant::now();
    let done = in_time(REQUEST, what, work).await?;
    samples.entry(what).or_default().push(begun.elapsed());
    Ok(done)
}

fn print(samples: &mut Samples) {
    for (what, times) in samples {
        times.sort();
        let range = times.first().zip(times.last());
        let middle = times.get(times.len() / 2);
        println!(
            "{what}: {} times, {range:?}, median {middle:?}",
            times.len()
        );
    }
}
