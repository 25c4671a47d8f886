//! The steps until the VM runs, each with its time on stderr.
//!
//! Invariant: a request that makes something is let come to its end before an interrupt is acted
//! on, so that what it makes can be removed; a pull is broken off at once.
//! Failure: the failed step's; the caller removes what is there.

use std::path::PathBuf;
use std::pin::pin;
use std::time::Instant;

use anyhow::Context;
use cri_proto::v1::{CreateContainerRequest, PodSandboxConfig};

use super::{Run, RunError};
use crate::commands::progress;
use crate::manifest::PullPolicy;
use crate::request;

/// A VM that runs.
#[derive(Debug)]
pub(super) struct Launched {
    pub(super) sandbox: String,
    pub(super) container: String,
    /// First address of the pod.
    pub(super) ip: String,
    pub(super) log: PathBuf,
}

impl Run {
    pub(super) async fn launch(&mut self) -> anyhow::Result<Launched> {
        let runtime = self.runtime.clone();
        let directory = self
            .log_directory
            .to_str()
            .context("the log directory is not UTF-8")?;
        let config = request::sandbox(&self.pod, directory);

        let handler = self.pod.runtime_handler.clone();
        let making = step("sandbox", runtime.run_sandbox(config.clone(), handler));
        let sandbox = self.finish_step(making).await?;
        let status = runtime.sandbox_status(&sandbox).await?;
        let ip = status.network.map(|network| network.ip).unwrap_or_default();

        let image = step("image", self.ensure_image(&config)).await?;

        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.clone(),
            config: Some(request::container(&self.pod, &image)),
            sandbox_config: Some(config),
        };
        let making = step("create", runtime.create_container(request));
        let container = self.finish_step(making).await?;

        let starting = step("start", runtime.start_container(&container));
        self.finish_step(starting).await?;
        eprintln!("{:<8} {ip}", "address");
        let log = self.log_directory.join(request::log_path(&self.pod));
        Ok(Launched {
            sandbox,
            container,
            ip,
            log,
        })
    }

    /// Makes sure that the image is there and returns its id.
    async fn ensure_image(&mut self, config: &PodSandboxConfig) -> anyhow::Result<String> {
        let image = request::image(&self.pod);
        let policy = self.pod.container.pull;
        if policy != PullPolicy::Always {
            let present = self.runtime.image_status(image.clone(), false).await?.image;
            if let Some(present) = present {
                return Ok(present.id);
            }
        }
        if policy == PullPolicy::Never {
            return Err(RunError::NoImage(image.image).into());
        }
        let mut pull = pin!(self.runtime.pull_image(image.clone(), config.clone()));
        tokio::select! {
            id = &mut pull => Ok(id?),
            never = progress::show(&self.runtime, image) => match never {},
            () = self.interrupts.next() => Err(RunError::Interrupted.into()),
        }
    }

    /// Lets a request that makes something come to its end before an interrupt is acted on; a
    /// second interrupt does not wait for it.
    async fn finish_step<T>(
        &mut self,
        step: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let mut step = pin!(step);
        tokio::select! {
            done = &mut step => return done,
            () = self.interrupts.next() => {}
        }
        eprintln!("interrupted; this step is being finished, Ctrl-C again does not wait for it");
        tokio::select! {
            _ = step => {}
            () = self.interrupts.next() => {}
        }
        Err(RunError::Interrupted.into())
    }
}

/// Runs a step and reports how long it took.
async fn step<T, E: Into<anyhow::Error>>(
    name: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> anyhow::Result<T> {
    let since = Instant::now();
    let result = work.await.map_err(Into::into);
    let took = since.elapsed().as_secs_f64();
    match &result {
        Ok(_) => eprintln!("{name:<8} {took:.2} s"),
        Err(_) => eprintln!("{name:<8} {took:.2} s, failed"),
    }
    result
}
