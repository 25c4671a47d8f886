//! Reports to its Node, by events, that machines run by software emulation that was not requested.
//!
//! Invariant: one event for each reason, and one when emulation ends. An agent that restarts makes
//! no second one for the same reason in the same boot of the node, while the API server has the
//! first.
//! Failure: an event that cannot be created is logged, once for each reason, and tried again with
//! the next facts.

use nodeapi::v1::InfoResponse;

use crate::event::{self, About, Severity};

/// Bytes of a reason.
const LONGEST: usize = 512;

/// What the Node has events of.
#[derive(Debug, Default)]
pub(crate) struct Emulation {
    /// Why machines are emulated; empty: they are not.
    reported: String,
    /// The reason or end whose event could not be created.
    failed: Option<News>,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
struct News {
    severity: Severity,
    reason: &'static str,
    text: String,
    /// Of the daemon, when this is reported.
    because: String,
}

impl Emulation {
    /// Creates the event that is due by what the daemon says.
    pub(crate) async fn report(
        &mut self,
        client: &kube::Client,
        node: &str,
        daemon: &InfoResponse,
    ) {
        let Some(news) = self.due(daemon) else {
            return;
        };
        let about = About {
            namespace: "default",
            object: event::node(node),
            action: "ChooseAccelerator",
            reason: news.reason,
            severity: news.severity,
        };
        let key = format!("{} {} {}", daemon.boot_id, news.reason, news.text);
        match event::report_once(client.clone(), node, &about, &key, &news.text).await {
            Ok(()) => {
                self.reported = news.because;
                self.failed = None;
            }
            Err(error) if self.failed.as_ref() != Some(&news) => {
                tracing::warn!(error, "node event not written");
                self.failed = Some(news);
            }
            Err(_) => {}
        }
    }

    fn due(&mut self, daemon: &InfoResponse) -> Option<News> {
        let because = crds::text::printable(&daemon.emulated_because, LONGEST);
        if because == self.reported {
            return None;
        }
        if !because.is_empty() {
            return Some(News {
                severity: Severity::Warning,
                reason: "SoftwareEmulation",
                text: format!(
                    "machines run by software emulation, many times slower than with KVM: {because}"
                ),
                because,
            });
        }
        match daemon.accelerator.as_str() {
            // A daemon that has just started: it has not looked yet.
            "" => None,
            "kvm" => Some(News {
                severity: Severity::Normal,
                reason: "HardwareVirtualization",
                text: "machines that start from now on run with KVM; those that run stay emulated"
                    .to_owned(),
                because,
            }),
            // It is requested by now.
            _ => {
                self.reported = because;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(accelerator: &str, because: &str) -> InfoResponse {
        InfoResponse {
            accelerator: accelerator.to_owned(),
            emulated_because: because.to_owned(),
            ..InfoResponse::default()
        }
    }

    /// The reasons of the events of a node whose daemon says this, one after the other.
    fn events(said: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let mut emulation = Emulation::default();
        let mut events = Vec::new();
        for (accelerator, because) in said {
            if let Some(news) = emulation.due(&info(accelerator, because)) {
                emulation.reported = news.because;
                events.push((news.reason, news.text));
            }
        }
        events
    }

    #[test]
    fn a_node_has_an_event_for_each_reason_of_emulation_and_one_for_its_end() {
        let said = [
            ("", ""),
            ("tcg", "/dev/kvm does not exist"),
            ("tcg", "/dev/kvm does not exist"),
            // The daemon restarts.
            ("", ""),
            ("tcg", "the guest did not\n run"),
            ("kvm", ""),
            ("kvm", ""),
        ];
        let events = events(&said);
        let reasons: Vec<_> = events.iter().map(|(reason, _)| *reason).collect();
        let emulated = "SoftwareEmulation";
        assert_eq!(reasons, [emulated, emulated, "HardwareVirtualization"]);
        assert!(events[0].1.ends_with(": /dev/kvm does not exist"));
        assert!(events[1].1.ends_with(": the guest did not run"));
    }

    #[test]
    fn neither_kvm_nor_requested_emulation_has_an_event() {
        assert_eq!(events(&[("kvm", ""), ("tcg", "")]), []);
        let said = [("tcg", "x"), ("tcg", ""), ("kvm", "")];
        assert_eq!(events(&said).len(), 1);
    }

    #[test]
    fn a_reason_is_bounded() {
        let long = "x".repeat(5000);
        assert!(events(&[("tcg", &long), ("tcg", &long)])[0].1.len() < 700);
    }
}
