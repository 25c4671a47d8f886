//! Log and traces of the daemon.
//!
//! Invariant: without the feature `otel` there are no traces, and no setting requests them: the
//! check of the settings refuses it.
//! Failure: [`Error`] when the process has a log already, or the exporter of traces does not start.

use std::sync::Arc;
use std::time::Duration;

use service::telemetry::{Level, RequestTraces, init_adjustable};

use crate::config::Config;

/// Time for the export of the last traces at the end of the daemon.
#[cfg_attr(not(feature = "otel"), expect(dead_code))]
const LAST_EXPORT: Duration = Duration::from_secs(2);

/// Why there is no log, or there are no traces.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process has a log already.
    #[error("start logging")]
    Log(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The exporter of traces does not start.
    #[cfg(feature = "otel")]
    #[error("start the export of traces")]
    Traces(#[from] otel::Error),
}

/// What runs beside the daemon for its log and traces.
#[derive(Debug, Default)]
pub struct Telemetry {
    level: Option<Level>,
    requests: Option<Arc<dyn RequestTraces>>,
    #[cfg(feature = "otel")]
    exporter: Option<otel::Exporter>,
}

/// Starts the log and, where they are configured, the traces of the process.
///
/// # Errors
///
/// When the process has a log already, or the exporter does not start.
pub fn start(config: &Config) -> Result<Telemetry, Error> {
    #[cfg(feature = "otel")]
    if let Some(endpoint) = &config.tracing.endpoint {
        return traced(config, endpoint);
    }
    let level = init_adjustable(&config.log).map_err(|e| Error::Log(e.into()))?;
    Ok(Telemetry {
        level: Some(level),
        ..Telemetry::default()
    })
}

#[cfg(feature = "otel")]
fn traced(config: &Config, endpoint: &crate::config::CollectorUrl) -> Result<Telemetry, Error> {
    let sampling_rate_per_million = config.tracing.sampling_rate_per_million;
    let traces = otel::start(&otel::Settings {
        service: "vmlet",
        version: env!("CARGO_PKG_VERSION"),
        requests: crate::cri::TARGET,
        endpoint: endpoint.to_string(),
        sampling_rate_per_million,
    })?;
    let level = service::telemetry::init_traced(&config.log, traces.layer);
    let level = level.map_err(|e| Error::Log(e.into()))?;
    tracing::info!(%endpoint, sampling_rate_per_million, "export of traces started");
    Ok(Telemetry {
        level: Some(level),
        requests: Some(traces.requests),
        exporter: Some(traces.exporter),
    })
}

impl Telemetry {
    /// What knows the traces of clients, if there are traces.
    pub fn requests(&self) -> Option<Arc<dyn RequestTraces>> {
        self.requests.clone()
    }

    /// What changes the level of the log.
    pub fn level(&self) -> Option<Level> {
        self.level.clone()
    }

    /// Exports the last traces, for a short time. Blocks.
    pub fn stop(self) {
        #[cfg(feature = "otel")]
        if let Some(exporter) = self.exporter {
            exporter.stop(LAST_EXPORT);
        }
    }
}
