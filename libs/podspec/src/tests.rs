//! What annotations mean, by the vectors of `tests/fixtures/virtlet-annotations.yaml` and
//! `virtlet-guest-data.yaml`.
//!
//! Invariant: a vector names the sources that are read, and no refusal repeats what is in one.
//! Failure: the vector that differs.

use std::collections::BTreeMap;

use rstest::rstest;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::*;
use crate::guest_data::yaml;

const ANNOTATIONS: &str = include_str!("../../../tests/fixtures/virtlet-annotations.yaml");
const GUEST_DATA: &str = include_str!("../../../tests/fixtures/virtlet-guest-data.yaml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    about: String,
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    sources: BTreeMap<String, BTreeMap<String, String>>,
    mount_script: Option<String>,
    machine: Option<Map<String, Value>>,
    layout: Option<String>,
    meta_data: Option<Value>,
    user_data: Option<String>,
    user_data_map: Option<Value>,
    dhcp: Option<bool>,
    files: Option<Vec<ExpectedFile>>,
    reported: Option<Vec<String>>,
    error: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedFile {
    path: String,
    mode: u32,
    text: String,
}

/// What the pod of a vector gets.
struct Outcome {
    machine: Machine,
    data: CloudData,
}

impl Vector {
    fn held(&self) -> BTreeMap<Source, Content> {
        let object = |(name, keys): (&String, &BTreeMap<String, String>)| {
            let (kind, name) = name.split_once('/').unwrap();
            let kind = match kind {
                "secret" => SourceKind::Secret,
                "configmap" => SourceKind::ConfigMap,
                other => panic!("{other}"),
            };
            let keys = keys.iter();
            let keys = keys.map(|(key, value)| (key.clone(), value.clone().into_bytes()));
            (Source::new(kind, name).unwrap(), Content(keys.collect()))
        };
        self.sources.iter().map(object).collect()
    }

    fn expects_something(&self) -> bool {
        let of_machine = self.machine.is_some() || self.reported.is_some();
        let of_data = [&self.layout, &self.user_data, &self.error];
        let maps = self.meta_data.is_some() || self.user_data_map.is_some();
        let others = self.dhcp.is_some() || self.files.is_some();
        of_machine || of_data.iter().any(|text| text.is_some()) || maps || others
    }

    fn outcome(&self) -> Result<Outcome, String> {
        let defaults = Defaults {
            vcpus: Vcpus::ONE,
            memory: Mib::new(1024),
            cpu_model: CpuModel::Default,
        };
        let machine = Machine::from_pod(&self.annotations, PodResources::default(), defaults);
        let machine = machine.map_err(|error| error.to_string())?;
        let data = GuestData::from_pod(&self.annotations).map_err(|error| error.to_string())?;
        let data = data.expect("guest data");
        let held = self.held();
        let sources: Vec<_> = held.keys().cloned().collect();
        assert!(data.sources().into_iter().eq(sources), "{}", self.about);
        let guest = GuestName {
            instance_id: "web.default",
            host_name: "web",
        };
        let data = data.assemble(&guest, &held);
        let mut data = data.map_err(|error| error.to_string())?;
        if let Some(script) = &self.mount_script {
            data.insert_mount_script(script);
        }
        Ok(Outcome { machine, data })
    }

    /// Compares what the vector has of the outcome.
    fn check(&self, Outcome { machine, data }: &Outcome) {
        let about = &self.about;
        let machine = serde_json::to_value(machine).unwrap();
        for (field, value) in self.machine.iter().flatten() {
            assert_eq!(machine.get(field), Some(value), "{about}: {field}");
        }
        if let Some(layout) = &self.layout {
            assert_eq!(&format!("{:?}", data.layout), layout, "{about}");
        }
        if let Some(meta_data) = &self.meta_data {
            let found: Value = serde_json::from_slice(&data.meta_data).unwrap();
            assert_eq!(&found, meta_data, "{about}");
        }
        let user_data = std::str::from_utf8(&data.user_data).unwrap();
        if let Some(text) = &self.user_data {
            assert_eq!(user_data, text, "{about}");
        }
        if let Some(map) = &self.user_data_map {
            assert!(user_data.starts_with("#cloud-config\n"), "{about}");
            assert_eq!(&yaml::value(user_data).unwrap(), map, "{about}");
        }
        if let Some(dhcp) = self.dhcp {
            let version = NetworkVersion::V2;
            let expected = NetworkData::Generated { version, dhcp };
            assert_eq!(data.network, expected, "{about}");
        }
        if let Some(files) = &self.files {
            let file = |file: &GuestFile| ExpectedFile {
                path: file.path.clone(),
                mode: file.mode,
                text: String::from_utf8(file.content.clone()).unwrap(),
            };
            let found: Vec<_> = data.files.iter().map(file).collect();
            assert_eq!(&found, files, "{about}");
        }
    }
}

#[rstest]
#[case::annotations(ANNOTATIONS, 55)]
#[case::guest_data(GUEST_DATA, 20)]
fn every_vector_has_its_outcome(#[case] file: &str, #[case] least: usize) {
    let vectors: Vec<Vector> = serde_saphyr::from_str(file).unwrap();
    assert!(vectors.len() > least, "{}", vectors.len());
    for vector in vectors {
        let about = &vector.about;
        assert!(vector.expects_something(), "{about}");
        if let Some(names) = &vector.reported {
            let unknown = unknown_annotations(&vector.annotations).into_iter();
            assert!(unknown.map(|found| found.name).eq(names.clone()), "{about}");
        }
        match (vector.outcome(), &vector.error) {
            (Ok(outcome), None) => vector.check(&outcome),
            (Err(error), Some(words)) => {
                assert!(error.contains(words), "{about}: {error}");
                assert!(!error.contains("hush"), "{about}: {error}");
            }
            (Ok(outcome), Some(_)) => panic!("{about}: accepted: {:?}", outcome.data),
            (Err(error), None) => panic!("{about}: {error}"),
        }
    }
}
