//! `vmletctl` against the real API server: the writes of its verbs, and its errors.
//!
//! Invariant: no controller runs, so everything that changes was changed by the command under test.
//! Failure: the command's own output is in the message.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use crds::VirtualMachine;
use e2e::{Control, Effect, program};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const WRITERS: usize = 6;

/// Runs the program that was built beside this test.
pub(super) struct Ctl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Ctl {
    pub(super) fn new(control: &Control) -> Result<Self> {
        let test = std::env::current_exe()?;
        let target = test
            .ancestors()
            .nth(2)
            .context("a test lies in target/debug/deps")?;
        Ok(Self {
            program: target.join("vmletctl"),
            kubeconfig: control.kubeconfig()?,
        })
    }

    pub(super) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(line.split_whitespace())
            .env("KUBECONFIG", &self.kubeconfig);
        command
    }

    pub(super) fn run(&self, line: &str) -> Result<Output> {
        program::output(&mut self.command(line))
    }

    /// Standard output of a command that succeeds.
    pub(super) fn ok(&self, line: &str) -> Result<String> {
        let output = self.run(line)?;
        ensure!(output.status.success(), "{line}: {output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Standard error of a command that fails.
    pub(super) fn refused(&self, line: &str) -> Result<String> {
        let output = self.run(line)?;
        ensure!(output.status.code() == Some(1), "{line}: {output:?}");
        Ok(String::from_utf8(output.stderr)?)
    }
}

/// kubectl, which finds the program by its names as a plugin.
fn kubectl(control: &Control, ctl: &Ctl, arguments: &[&str]) -> Result<String> {
    let folder = control.stack().dir().join("plugins");
    std::fs::create_dir_all(&folder)?;
    for name in ["kubectl-vmlet", "kubectl_complete-vmlet"] {
        let link = folder.join(name);
        if !link.is_symlink() {
            std::os::unix::fs::symlink(&ctl.program, link)?;
        }
    }
    let path = format!("{}:{}", folder.display(), control.stack().var("PATH")?);
    let mut command = Command::new("kubectl");
    command
        .args(arguments)
        .env("PATH", path)
        .env("KUBECONFIG", &ctl.kubeconfig);
    let output = program::output(&mut command)?;
    ensure!(output.status.success(), "kubectl {arguments:?}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Images of both kinds, and what a shell is offered.
async fn images_and_completion(control: &Control, ctl: &Ctl) -> Result<()> {
    let empty = ctl.run("image list")?;
    ensure!(
        empty.status.success() && empty.stdout.is_empty(),
        "{empty:?}"
    );
    let objects = control.objects("default")?;
    let source = json!({ "source": { "http": { "url": "https://h.example/Debian.qcow2?v=12" } } });
    for (kind, name) in [
        ("VirtualMachineImage", "debian"),
        ("ClusterVirtualMachineImage", "shared"),
    ] {
        let image = json!({ "metadata": { "name": name }, "spec": source });
        let made = objects.create(kind, &image, Effect::Real).await?;
        made.map_err(anyhow::Error::msg)?;
    }
    let status = json!({ "status": { "type": "qcow2", "nodeCount": 3, "disks": [{ "name": "root", "limit": "2Gi" }],
        "conditions": [{ "type": "Ready", "status": "False", "reason": "NotReady", "message": "h.example answered 404",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }] } });
    let done = objects
        .patch(
            "VirtualMachineImage",
            "debian/status",
            &status,
            Effect::Real,
        )
        .await?;
    done.map_err(anyhow::Error::msg)?;
    let table = ctl.ok("image list --sources")?;
    for word in [
        "debian",
        "shared",
        "qcow2",
        "2Gi",
        "NotReady",
        "h.example answered 404",
        "Debian.qcow2?v=12",
    ] {
        ensure!(table.contains(word), "{word} is missing: {table}");
    }
    let offered =
        |words: &[&str]| kubectl(control, ctl, &[&["__complete", "vmlet"], words].concat());
    for (words, expected) in [
        (&["status", "w"][..], &["web"][..]),
        (
            &["create", "vm", "new", "--image", ""],
            &["debian", "shared"],
        ),
        (&["list", "-n", "kube-s"], &["kube-system"]),
        (&["stat"], &["status"]),
    ] {
        let offered = offered(words)?;
        let names: Vec<_> = offered
            .lines()
            .map(|line| line.split('\t').next().unwrap_or_default())
            .collect();
        ensure!(
            expected.iter().all(|name| names.contains(name)),
            "{words:?}: {offered}"
        );
        ensure!(names.last() == Some(&":4"), "{words:?}: {offered}");
    }
    Ok(())
}

struct Machines {
    vms: Api<VirtualMachine>,
    pods: Api<Pod>,
}

impl Machines {
    fn new(control: &Control) -> Result<Self> {
        let client = control.client()?;
        Ok(Self {
            vms: Api::namespaced(client.clone(), "default"),
            pods: Api::namespaced(client, "default"),
        })
    }

    /// A machine with a pod that says it runs.
    async fn running(&self, ctl: &Ctl, name: &str, strategy: &str) -> Result<String> {
        ctl.ok(&format!(
            "create vm {name} --image debian --memory 64Mi --run-strategy {strategy} --apply"
        ))?;
        let vm = self.vms.get(name).await?;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"vmlet.dev/vm-uid": vm.metadata.uid}},
            "spec": {"nodeName": "nowhere", "containers": [{"name": "vm", "image": "debian"}]},
        });
        let pod: Pod = serde_json::from_value(pod)?;
        let pod = self.pods.create(&PostParams::default(), &pod).await?;
        let state = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let status = json!({"status": {"phase": "Running", "containerStatuses": [{
            "name": "vm", "image": "debian", "imageID": "", "ready": true, "restartCount": 0, "state": state}]}});
        self.pods
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
        pod.metadata.uid.context("the pod has a uid")
    }

    async fn queue(&self, name: &str) -> Result<Vec<(String, Option<String>)>> {
        let status = self.vms.get(name).await?.status.unwrap_or_default();
        let queue = status.state_change_requests.into_iter();
        Ok(queue.map(|r| (format!("{:?}", r.action), r.uid)).collect())
    }
}

/// With networks and a probe, which the server takes; then ssh and scp get the way to its guest.
async fn log_in(control: &Control, ctl: &Ctl, vms: &Api<VirtualMachine>) -> Result<()> {
    ctl.ok(
        "create vm shell --image debian --memory 64Mi --network blue --network team-b/red \
         --mac 52:54:00:12:34:56 --hostname www --readiness-probe tcp=22 --apply",
    )?;
    let off = ctl.refused("ssh root@shell")?;
    ensure!(off.contains("does not run"), "{off}");
    let none = ctl.refused("scp file none:/tmp")?;
    ensure!(none.contains("there is no virtual machine none"), "{none}");
    let runs = json!({ "status": { "printableStatus": "Running" } });
    let params = PatchParams::default();
    let vm = vms
        .patch_status("shell", &params, &Patch::Merge(runs))
        .await?;
    let folder = control.stack().dir().join("ssh");
    std::fs::create_dir(&folder)?;
    for name in ["ssh", "scp"] {
        std::os::unix::fs::symlink("/bin/echo", folder.join(name))?;
    }
    let uid = vm.metadata.uid.context("UID")?;
    let way = format!(
        "-o ProxyCommand={} --namespace=default --request-timeout=30 port-forward shell --stdio %p \
         -o HostKeyAlias=vmlet.dev/{uid} -o UserKnownHostsFile=~/.ssh/vmlet_known_hosts -o ControlPath=none",
        ctl.program.canonicalize()?.display()
    );
    for (line, rest) in [
        (
            "ssh root@shell -- -v uptime",
            "-l root shell.default.vmlet -v uptime",
        ),
        (
            "scp -r shell:a root@shell:b c",
            "-r -- shell.default.vmlet:a root@shell.default.vmlet:b c",
        ),
    ] {
        let mut command = ctl.command(line);
        let output = program::output(command.env("PATH", &folder))?;
        let expected = format!("{way} {rest}\n");
        ensure!(output.stdout == expected.as_bytes(), "{line}: {output:?}");
    }
    ctl.ok("delete shell").map(drop)
}

#[tokio::test]
#[ignore = "needs root"]
async fn machines_are_created_listed_and_watched() -> Result<()> {
    let control = Control::up().await?;
    let ctl = Ctl::new(&control)?;
    let made = ctl.ok("create vm web --image debian --memory 64Mi --label tier=web --apply")?;
    ensure!(made == "virtualmachine.vmlet.dev/web created\n", "{made}");
    let again = ctl.ok("create vm web --image debian --memory 64Mi --label tier=web --apply")?;
    ensure!(
        again == "virtualmachine.vmlet.dev/web unchanged\n",
        "{again}"
    );
    let nowhere = ctl.refused("-n nowhere create vm web --image debian --memory 64Mi --apply")?;
    ensure!(
        nowhere.contains("there is no namespace nowhere"),
        "{nowhere}"
    );
    ctl.ok("create vm db --image debian --memory 64Mi --run-strategy Halted --apply")?;
    let file = control.stack().dir().join("others.yaml");
    std::fs::write(
        &file,
        ctl.ok("create vm others --image debian --memory 64Mi")?,
    )?;
    let admin = |words: &[&str]| control.cluster().kubectl(words);
    admin(&["create", "-f", &file.to_string_lossy()])?;
    let owned = ctl.refused("create vm others --image debian --memory 128Mi --apply")?;
    ensure!(
        owned.contains("others set the same fields of others") && owned.contains("kubectl-create"),
        "{owned}"
    );
    admin(&["delete", "vm", "others"])?;

    let table = ctl.ok("list")?;
    ensure!(
        table.starts_with("NAME") && table.lines().count() == 3,
        "{table}"
    );
    ensure!(
        !table.contains('\u{1b}'),
        "piped output has no colours: {table:?}"
    );
    ensure!(
        !table.contains("PROGRESS"),
        "nothing is in the way: {table}"
    );
    let by_plugin = kubectl(&control, &ctl, &["vmlet", "list"])?;
    images_and_completion(&control, &ctl).await?;
    // Ages differ.
    let names = |table: &str| -> Vec<String> {
        let first = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
        table.lines().map(first).collect()
    };
    ensure!(names(&by_plugin) == names(&table), "{by_plugin}");
    let time = "2026-01-01T00:00:00Z";
    let obstacle = json!({ "status": { "printableStatus": "Provisioning", "conditions": [{
        "type": "Failure", "status": "True", "reason": "FailedCreate", "lastTransitionTime": time,
        "message": "image debian does not exist",
    }]}});
    let vms = Machines::new(&control)?.vms;
    let obstacle = Patch::Merge(obstacle);
    vms.patch_status("web", &PatchParams::default(), &obstacle)
        .await?;
    let reported = ctl.ok("list")?;
    ensure!(
        reported.contains("PROGRESS") && reported.contains("image debian does not exist"),
        "{reported}"
    );
    log_in(&control, &ctl, &vms).await?;
    let selected = ctl.ok("list -A -l tier=web -o wide")?;
    ensure!(
        selected.contains("runStrategy=Always") && selected.lines().count() == 2,
        "{selected}"
    );
    let names = ctl.ok("list -o name")?;
    ensure!(
        names == "virtualmachine.vmlet.dev/db\nvirtualmachine.vmlet.dev/web\n",
        "{names}"
    );
    let json: Value = serde_json::from_str(&ctl.ok("list -o json")?)?;
    ensure!(
        json["kind"] == "List" && json["items"][1]["kind"] == "VirtualMachine",
        "{json}"
    );
    let yaml = ctl.ok("list -o yaml --field-selector metadata.name=db")?;
    ensure!(
        yaml.contains("runStrategy: Halted") && !yaml.contains("web"),
        "{yaml}"
    );
    let status = ctl.ok("status web")?;
    ensure!(
        status.contains("Desired:    runStrategy=Always"),
        "{status}"
    );
    // What is printed can be applied as it is.
    let printed = ctl.ok("create vm third --image debian --memory 64Mi")?;
    let file = control.stack().dir().join("third.yaml");
    std::fs::write(&file, printed)?;
    control
        .cluster()
        .kubectl(&["apply", "-f", &file.to_string_lossy()])?;

    let invalid = ctl.refused("create vm bad --image debian --memory 1 --apply")?;
    ensure!(invalid.contains("the cluster refuses that"), "{invalid}");
    crate::recovered::two_disks_of_one_machine(&control, &ctl)?;
    crate::grouped::groups_are_powered_and_get_members(&control, &ctl).await?;
    crate::trial::guests_are_tried(&control, &ctl).await?;
    control.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn verbs_change_the_desired_state_or_the_queue() -> Result<()> {
    let control = Control::up().await?;
    let ctl = Ctl::new(&control)?;
    let machines = Machines::new(&control)?;
    let spec = async |name: &str| -> Result<Value> {
        let spec = serde_json::to_value(machines.vms.get(name).await?.spec)?;
        Ok(json!([spec.get("powerState"), spec.get("runStrategy")]))
    };

    machines.running(&ctl, "always", "Always").await?;
    ctl.ok("stop always --dry-run")?;
    ensure!(
        spec("always").await? == json!([null, "Always"]),
        "a dry run changes nothing"
    );
    ctl.ok("pause always")?;
    ensure!(machines.vms.get("always").await?.spec.paused, "paused");
    ctl.ok("unpause always")?;
    ctl.ok("suspend always")?;
    ensure!(
        spec("always").await? == json!(["Suspended", null]),
        "suspended"
    );
    ctl.ok("resume always")?;
    ensure!(
        spec("always").await? == json!([null, "Always"]),
        "as it was before"
    );
    let vm = machines.vms.get("always").await?;
    let remembered = vm.metadata.annotations.unwrap_or_default();
    ensure!(
        !remembered.contains_key("vmlet.dev/resume-state"),
        "{remembered:?}"
    );
    ctl.ok("stop always")?;
    ensure!(spec("always").await? == json!([null, "Halted"]), "halted");

    let uid = machines.running(&ctl, "manual", "Manual").await?;
    let stop = ("Stop".to_owned(), Some(uid));
    ctl.ok("restart manual")?;
    let pair = vec![stop.clone(), ("Start".to_owned(), None)];
    ensure!(
        machines.queue("manual").await? == pair,
        "a restart is a pair"
    );
    let second = ctl.refused("restart manual")?;
    ensure!(
        second.contains("manual: another request is under way") && second.contains("409"),
        "{second}"
    );
    ctl.ok("stop manual --force")?;
    ensure!(
        machines.queue("manual").await? == vec![stop],
        "a stop replaces what waits"
    );

    let several = ctl.run("start always absent manual")?;
    let reported = String::from_utf8(several.stderr)?;
    ensure!(
        reported.contains("no virtual machine absent")
            && reported.contains("manual: it is running"),
        "{reported}"
    );
    ensure!(
        spec("always").await? == json!([null, "Always"]),
        "one refusal does not hold the others up"
    );

    ctl.ok("delete always --dry-run")?;
    ensure!(
        machines.vms.get_opt("always").await?.is_some(),
        "a dry run deletes nothing"
    );
    ctl.ok("delete always")?;
    ensure!(
        machines.vms.get_opt("always").await?.is_none(),
        "no finalizer keeps it"
    );
    let uid = machines.running(&ctl, "held", "Always").await?;
    let held = json!({ "metadata": { "finalizers": ["example.com/held"] } });
    let params = PatchParams::default();
    machines
        .vms
        .patch("held", &params, &Patch::Merge(held))
        .await?;
    ctl.ok("delete held")?;
    ensure!(
        machines.queue("held").await?.is_empty(),
        "the guest has its time"
    );
    let again = ctl.refused("delete held")?;
    ensure!(
        again.contains("being deleted already") && again.contains("--force"),
        "{again}"
    );
    ctl.ok("delete held --force")?;
    ensure!(
        machines.queue("held").await? == [("Stop".to_owned(), Some(uid))],
        "its guest is ended at once"
    );
    control.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn of_concurrent_writers_one_succeeds_and_the_others_get_a_conflict() -> Result<()> {
    let control = Control::up().await?;
    let ctl = Ctl::new(&control)?;
    let machines = Machines::new(&control)?;
    let uid = machines.running(&ctl, "web", "Manual").await?;

    let children = (0..WRITERS).map(|_| {
        let mut command = ctl.command("restart web");
        command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        command.spawn()
    });
    let children = children.collect::<Result<Vec<_>, _>>()?;
    let outputs = children
        .into_iter()
        .map(|child| program::ended("vmletctl restart", child));
    let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
    let (exchanges, reported): (Vec<_>, Vec<_>) = outputs.iter().partition(|o| o.status.success());
    ensure!(exchanges.len() == 1, "{outputs:?}");
    for output in reported {
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(text.contains("(409)"), "{text}");
    }
    let queue = machines.queue("web").await?;
    ensure!(
        queue == [("Stop".to_owned(), Some(uid)), ("Start".to_owned(), None)],
        "{queue:?}"
    );

    // A patch that was decided from an older queue is refused whole.
    let stale = json!([
        {"op": "test", "path": "/status/stateChangeRequests", "value": null},
        {"op": "add", "path": "/status/stateChangeRequests", "value": []},
    ]);
    let path = "/apis/vmlet.dev/v1alpha1/namespaces/default/virtualmachines/web/status";
    let request = http::Request::patch(path)
        .header("content-type", "application/json-patch+json")
        .body(serde_json::to_vec(&stale)?)?;
    let refused = control.client()?.request::<Value>(request).await;
    let Err(kube::Error::Api(status)) = refused else {
        anyhow::bail!("taken: {refused:?}");
    };
    ensure!(
        status.code == 422 && status.message.contains("the server rejected our request"),
        "{status:?}"
    );
    ensure!(
        machines.queue("web").await?.len() == 2,
        "nothing was changed"
    );
    control.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn errors_contain_the_next_step() -> Result<()> {
    let control = Control::bare().await?;
    let ctl = Ctl::new(&control)?;
    let missing = ctl.refused("list")?;
    ensure!(
        missing.contains("has no virtual machines") && missing.contains("install Vmlet"),
        "{missing}"
    );
    let missing = ctl.refused("start web")?;
    ensure!(missing.contains("has no virtual machines"), "{missing}");
    control.install_kinds().await?;
    let unknown = ctl.refused("status web")?;
    ensure!(
        unknown.contains("no virtual machine web in namespace default"),
        "{unknown}"
    );
    let forbidden = ctl.refused("list --as eve --as-group system:authenticated")?;
    ensure!(
        forbidden.contains("not allowed") && forbidden.contains("eve"),
        "{forbidden}"
    );
    let elsewhere = ctl.refused("list --context elsewhere")?;
    ensure!(elsewhere.contains("no usable kubeconfig"), "{elsewhere}");
    let nowhere = ctl.refused("list --kubeconfig /nonexistent")?;
    ensure!(nowhere.contains("--kubeconfig"), "{nowhere}");
    control.stop_api().await?;
    let silent = ctl.refused("list")?;
    ensure!(silent.contains("the cluster does not answer"), "{silent}");
    control.down()
}
