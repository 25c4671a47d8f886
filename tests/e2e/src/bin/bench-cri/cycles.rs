//! Measures the calls of a pod's life, in the order in which kubelet makes them.
//!
//! Invariant: the runtimes take turns call by call, and in who is first; the first pod is not
//! counted. Steps of our teardown are what our programs logged.
//! Failure: a call that failed, or an event that is missing in a log.

use std::time::Instant;

use anyhow::{Context, Result};
use e2e::PodOptions;
use e2e::bench::{Stack, field};
use e2e::samples::Samples;
use tonic::Status;

use crate::sides::{Side, Sides};

/// Calls that only read, of each kind for each pod.
const READS: u32 = 10;

/// Steps of the teardown: program, message, field, name of the samples.
const STEPS: [(&str, &str, &str, &str); 9] = [
    ("vmlet", "pod sandbox stopped", "took", "step_all"),
    ("vmlet", "pod sandbox stopped", "machines", "step_machines"),
    ("vmlet", "pod sandbox stopped", "network", "step_network"),
    (
        "vmlet-tapmanager",
        "network removed",
        "took",
        "step_removal",
    ),
    (
        "vmlet-tapmanager",
        "network removed",
        "journal",
        "step_journal",
    ),
    ("vmlet-tapmanager", "network removed", "links", "step_links"),
    (
        "vmlet-tapmanager",
        "network removed",
        "plugins",
        "step_plugins",
    ),
    (
        "vmlet-tapmanager",
        "network removed",
        "namespace",
        "step_namespace",
    ),
    ("vmlet", "machine killed", "took", "step_destroy"),
];

/// A pod at one of the runtimes.
struct Pod<'a> {
    side: &'a Side,
    options: PodOptions,
    sandbox: String,
    container: String,
}

/// The samples of a pod; none for the first one.
struct Times<'a>(Option<&'a mut Samples>);

impl Times<'_> {
    async fn take<T>(
        &mut self,
        call: &str,
        side: &Side,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T> {
        let begun = Instant::now();
        let answer = answer.await;
        let took = begun.elapsed();
        let answer = answer.with_context(|| format!("{call} of {}", side.name))?;
        if let Some(samples) = &mut self.0 {
            samples.time(format!("{call}_{}", side.name), took);
        }
        Ok(answer)
    }
}

/// `count` pods of each runtime.
pub(crate) async fn measure(
    stack: &Stack,
    image: &str,
    tools: &str,
    count: u32,
) -> Result<Samples> {
    let sides = Sides::connect(stack, image, tools).await?;
    let mut samples = Samples::default();
    for number in 0..=count {
        let seen = (
            stack.log_size("vmlet")?,
            stack.log_size("vmlet-tapmanager")?,
        );
        let options = sides.pod(stack, &format!("cycle-{number}"))?;
        let mut pods = sides.in_turn(number).map(|side| Pod {
            side,
            options: options.clone(),
            sandbox: String::new(),
            container: String::new(),
        });
        let mut times = Times((number > 0).then_some(&mut samples));
        Box::pin(live(&mut pods, &mut times)).await?;
        if number > 0 {
            let ours = pods.iter().find(|pod| pod.side.name == "vmlet");
            let ours = ours.context("no pod of vmlet")?;
            steps(stack, &mut samples, seen, ours)?;
        }
    }
    Ok(samples)
}

async fn live(pods: &mut [Pod<'_>; 2], times: &mut Times<'_>) -> Result<()> {
    for Pod {
        side,
        options,
        sandbox,
        ..
    } in &mut *pods
    {
        let run = Box::pin(side.cri.run(options.sandbox()));
        *sandbox = times.take("run", side, run).await?;
    }
    for Pod {
        side,
        options,
        sandbox,
        container,
    } in &mut *pods
    {
        let config = side.container(options);
        let create = Box::pin(side.cri.create(sandbox, config, options.sandbox()));
        *container = times.take("create", side, create).await?;
    }
    for Pod {
        side, container, ..
    } in &mut *pods
    {
        times.take("start", side, side.cri.start(container)).await?;
    }
    for _ in 0..READS {
        for Pod { side, sandbox, .. } in &mut *pods {
            times
                .take("sandbox_status", side, side.cri.sandbox(sandbox))
                .await?;
        }
        for Pod {
            side, container, ..
        } in &mut *pods
        {
            times
                .take("container_status", side, side.cri.container(container))
                .await?;
        }
        for Pod { side, .. } in &mut *pods {
            times
                .take("list_sandboxes", side, side.cri.sandboxes())
                .await?;
        }
    }
    for Pod {
        side, container, ..
    } in &mut *pods
    {
        times
            .take("stop", side, side.cri.stop(container, 0))
            .await?;
    }
    for Pod { side, sandbox, .. } in &mut *pods {
        times
            .take("stop_pod", side, side.cri.stop_pod(sandbox))
            .await?;
    }
    for Pod {
        side, container, ..
    } in &mut *pods
    {
        times
            .take("remove", side, side.cri.remove(container))
            .await?;
    }
    for Pod { side, sandbox, .. } in &mut *pods {
        times
            .take("remove_pod", side, side.cri.remove_pod(sandbox))
            .await?;
    }
    Ok(())
}

fn steps(stack: &Stack, samples: &mut Samples, seen: (usize, usize), pod: &Pod<'_>) -> Result<()> {
    let daemon = stack.log_from("vmlet", seen.0)?;
    let tapmanager = stack.log_from("vmlet-tapmanager", seen.1)?;
    for (program, message, name, sample) in STEPS {
        let log = if program == "vmlet" {
            &daemon
        } else {
            &tapmanager
        };
        let id = if message == "machine killed" {
            &pod.container
        } else {
            &pod.sandbox
        };
        samples.time(sample, field(log, id, message, name)?);
    }
    Ok(())
}
