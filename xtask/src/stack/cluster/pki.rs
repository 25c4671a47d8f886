//! Keys and certificates of a cluster, made again for each.
//!
//! Invariant: private keys are readable by root only; every name under which a server is reached is
//! in its certificate.
//! Failure: a certificate that cannot be made or written is named.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::{Plan, node_address, node_name};

/// Whose certificate it is: file name, user, groups, other names.
struct Subject {
    file: String,
    user: String,
    group: Option<&'static str>,
    names: Vec<String>,
}

/// The file name of a kubelet's certificate.
pub(super) fn kubelet(number: u8) -> String {
    format!("kubelet-{}", node_name(number))
}

/// Writes all keys and certificates of a cluster below `folder`.
pub(super) fn issue(folder: &Path, plan: &Plan) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    authority
        .distinguished_name
        .push(DnType::CommonName, "vmlet-test-cluster");
    let key = KeyPair::generate().context("the authority's key")?;
    let certificate = authority
        .self_signed(&key)
        .context("the authority's certificate")?;
    write(folder, "ca.crt", &certificate.pem())?;
    let issuer = Issuer::new(authority, key);
    for subject in subjects(plan) {
        subject
            .issue(folder, &issuer)
            .with_context(|| format!("the certificate of {}", subject.user))?;
    }
    // The API server signs service accounts' tokens with it.
    let key = KeyPair::generate().context("the service accounts' key")?;
    write(folder, "service-accounts.pub", &key.public_key_pem())?;
    write(folder, "service-accounts.key", &key.serialize_pem())
}

fn subjects(plan: &Plan) -> Vec<Subject> {
    let plain = |file: &str, user: &str, group: Option<&'static str>| Subject {
        file: file.to_owned(),
        user: user.to_owned(),
        group,
        names: Vec::new(),
    };
    let server_names = [
        "127.0.0.1",
        &node_address(1),
        "10.96.0.1",
        "localhost",
        "kubernetes",
    ];
    let server_names = server_names
        .into_iter()
        .chain(["kubernetes.default", "kubernetes.default.svc"]);
    let mut subjects = vec![
        Subject {
            names: server_names.map(str::to_owned).collect(),
            ..plain("kube-apiserver", "kube-apiserver", Some("system:masters"))
        },
        plain("admin", "admin", Some("system:masters")),
        plain(
            "kube-controller-manager",
            "system:kube-controller-manager",
            None,
        ),
        plain("kube-scheduler", "system:kube-scheduler", None),
        plain("kube-proxy", "system:kube-proxy", None),
        // The account of deploy/, so that its rights are those that tests prove.
        plain(
            "vmlet-controller",
            "system:serviceaccount:vmlet-system:vmlet-controller",
            Some("system:serviceaccounts"),
        ),
    ];
    subjects.extend((1..=plan.nodes).map(|number| Subject {
        file: kubelet(number),
        user: format!("system:node:{}", node_name(number)),
        group: Some("system:nodes"),
        names: vec![node_address(number), node_name(number)],
    }));
    subjects
}

impl Subject {
    fn issue(&self, folder: &Path, issuer: &Issuer<'_, KeyPair>) -> Result<()> {
        let mut params = CertificateParams::new(self.names.clone())?;
        params
            .distinguished_name
            .push(DnType::CommonName, self.user.as_str());
        if let Some(group) = self.group {
            params
                .distinguished_name
                .push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !self.names.is_empty() {
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, issuer)?;
        write(folder, &format!("{}.crt", self.file), &certificate.pem())?;
        write(folder, &format!("{}.key", self.file), &key.serialize_pem())
    }
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::stack::cluster::Guests;

    #[test]
    fn every_node_has_its_certificate_and_keys_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan {
            nodes: 2,
            guests: Guests::Vmlet,
        };
        issue(folder.path(), &plan).unwrap();
        for name in [
            "ca.crt",
            "admin.key",
            "kubelet-node1.crt",
            "kubelet-node2.key",
        ] {
            let file = fs::metadata(folder.path().join(name)).unwrap();
            assert_eq!(file.permissions().mode() & 0o777, 0o600, "{name}");
        }
        assert!(!folder.path().join("kubelet-node3.crt").exists());
        assert!(
            !folder.path().join("ca.key").exists(),
            "the key that signs is left"
        );
    }
}
