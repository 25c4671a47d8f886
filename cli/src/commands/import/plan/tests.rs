use super::super::ovf::tests::{VIRTUALBOX, VMWARE};
use super::*;

fn choice() -> Choice {
    Choice {
        name: "web".to_owned(),
        image: "web-disk".to_owned(),
        node: Some("n1".to_owned()),
        run_strategy: "Halted".to_owned(),
        ..Choice::default()
    }
}

fn planned(text: &str, choice: &Choice) -> Result<Plan, PlanError> {
    Plan::new(&Description::parse(text, None).unwrap(), choice)
}

fn refused(text: &str, choice: &Choice) -> String {
    planned(text, choice).unwrap_err().to_string()
}

#[test]
fn a_machine_of_vmware_is_what_the_report_says() {
    let choice = Choice {
        networks: vec![("Storage".to_owned(), "lab/storage".to_owned())],
        ..choice()
    };
    let plan = planned(VMWARE, &choice).unwrap();
    assert_eq!(
        plan.machine["spec"],
        json!({
            "runStrategy": "Halted",
            "image": {"kind": "VirtualMachineImage", "name": "web-disk"},
            "hardware": {"cpus": 4, "memory": "8192Mi"},
            "bootDiskCapacity": "40Gi",
            "firmware": "UEFI",
            "nodeSelector": {"kubernetes.io/hostname": "n1"},
            "network": {"interfaces": [
                {"name": "eth0"}, {"name": "eth1", "networkRef": "lab/storage"},
            ]},
        })
    );
    let vm: crds::VirtualMachine = serde_json::from_value(plan.machine.clone()).unwrap();
    assert_eq!(vm.metadata.name.as_deref(), Some("web"));
    assert_eq!(plan.file.href, "web-1.vmdk");
    insta::assert_snapshot!(plan.report.render(), @r##"
    RESULT    PART                            DETAIL
    kept      CPUs and memory                 4 CPUs, 8192 MiB of memory
    left out  disk web-2.vmdk                 an image makes one disk: copy it into a claim, and name that by --volume DISK=CLAIM
    left out  disk vmdisk3                    it is empty (5Gi): name an empty claim by --volume DISK=CLAIM
    kept      disk web-1.vmdk                 it becomes the root disk, of 40Gi
    changed   controller VirtualSCSI          the disk is a virtio disk: the guest needs the driver to boot
    changed   NIC Ethernet 1 on "VM Network"  it is on the pod network
    changed   NIC Ethernet 1 on "VM Network"  model VmxNet3: it is a virtio NIC
    changed   NIC Ethernet 2 on "Storage"     it is on lab/storage
    changed   NIC Ethernet 2 on "Storage"     model E1000: it is a virtio NIC
    kept      firmware                        UEFI, without the variables of the package: the boot loader must be the file \EFI\BOOT\BOOTX64.EFI, too
    left out  secure boot                     the firmware of machines does not verify what it boots
    changed   hardware vmx-19                 the machine type is that of the node, q35
    left out  2 cores per socket              the node chooses sockets and cores
    left out  CD or DVD drive CD-ROM 1        machines have no such device
    left out  properties hostname, password   no program gives them to the guest: use spec.bootstrap.cloudInit
    note      license                         its descriptor has a license agreement (EulaSection): read it before you use the machine
    left out  ExtraConfig (1)                 it is not supported
    left out  AnnotationSection               it is not supported
    "##);
}

#[test]
fn a_machine_of_virtualbox_is_what_the_report_says() {
    let plan = planned(VIRTUALBOX, &choice()).unwrap();
    let spec = &plan.machine["spec"];
    assert_eq!(spec["hardware"], json!({"cpus": 2, "memory": "1000Mi"}));
    assert_eq!(spec["bootDiskCapacity"], "8Gi");
    assert!(spec["network"].is_null(), "{spec}");
    insta::assert_snapshot!(plan.report.render(), @r##"
    RESULT    PART                                    DETAIL
    kept      CPUs and memory                         2 CPUs, 1000 MiB of memory
    kept      disk box-disk001.vmdk                   it becomes the root disk, of 8Gi
    changed   controller AHCI                         the disk is a virtio disk: the guest needs the driver to boot
    changed   NIC Ethernet adapter on 'NAT' on "NAT"  it has a new MAC address: --keep-mac keeps the one of the package
    changed   NIC Ethernet adapter on 'NAT' on "NAT"  it is on the pod network
    kept      firmware                                BIOS
    changed   hardware virtualbox-2.2                 the machine type is that of the node, q35
    left out  USB controller usb                      machines have no such device
    "##);
    let keeps = Choice {
        keeps_macs: true,
        ..choice()
    };
    let plan = planned(VIRTUALBOX, &keeps).unwrap();
    let interface = &plan.machine["spec"]["network"]["interfaces"][0];
    assert_eq!(
        *interface,
        json!({"name": "eth0", "macAddr": "08:00:27:aa:bb:cc"})
    );
}

#[test]
fn further_disks_are_claims_that_the_user_names() {
    let volumes = |pairs: &[(&str, &str)]| Choice {
        volumes: pairs
            .iter()
            .map(|(disk, claim)| ((*disk).to_owned(), (*claim).to_owned()))
            .collect(),
        ..choice()
    };
    let both = volumes(&[("vmdisk3", "scratch"), ("web-2.vmdk", "data")]);
    let plan = planned(VMWARE, &both).unwrap();
    assert_eq!(
        plan.machine["spec"]["volumes"],
        json!([
            {"name": "disk1", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "disk2", "persistentVolumeClaim": {"claimName": "scratch"}},
        ]),
        "in the order of the package"
    );
    let vm: crds::VirtualMachine = serde_json::from_value(plan.machine.clone()).unwrap();
    assert_eq!(vm.spec.volumes.len(), 2);
    let report = plan.report.render();
    let words: Vec<_> = report.split_whitespace().collect();
    let report = words.join(" ");
    for line in [
        "changed disk web-2.vmdk it is the claim data: copy its content there before the start",
        "changed disk vmdisk3 it is the claim scratch",
    ] {
        assert!(report.contains(line), "{report}");
    }
    let unknown = refused(VMWARE, &volumes(&[("web-1.vmdk", "data")]));
    assert_eq!(
        unknown,
        "the package has no further disk \"web-1.vmdk\"; those that it has: web-2.vmdk, vmdisk3"
    );
    let twice = volumes(&[("vmdisk3", "data"), ("web-2.vmdk", "data")]);
    assert_eq!(
        refused(VMWARE, &twice),
        "claim \"data\" is given for two disks of the package"
    );
    let both_names = volumes(&[("web-2.vmdk", "data"), ("vmdisk2", "other")]);
    let other = VMWARE.replace("vmdisk3", "web-2.vmdk");
    assert_eq!(
        refused(&other, &volumes(&[("web-2.vmdk", "data")])),
        "the package has several further disks \"web-2.vmdk\": name the file, or the identifier, of one"
    );
    assert_eq!(
        refused(VMWARE, &both_names),
        "disk web-2.vmdk is given two claims"
    );
}

#[test]
fn the_user_chooses_size_and_disk() {
    let choice = Choice {
        class: Some("large".to_owned()),
        boot_disk: Some("web-2.vmdk".to_owned()),
        ..choice()
    };
    let plan = planned(VMWARE, &choice).unwrap();
    let spec = &plan.machine["spec"];
    assert_eq!(
        (&spec["className"], &spec["hardware"]),
        (&json!("large"), &Value::Null)
    );
    assert_eq!(
        (plan.file.href.as_str(), &spec["bootDiskCapacity"]),
        ("web-2.vmdk", &json!("10Gi"))
    );
    for name in ["vmdisk3", "tools.iso", "other"] {
        let choice = Choice {
            boot_disk: Some(name.to_owned()),
            ..self::choice()
        };
        let words = refused(VMWARE, &choice);
        assert!(words.ends_with("web-1.vmdk, web-2.vmdk"), "{words}");
    }
    let unknown = Choice {
        networks: vec![("LAN".to_owned(), "x".to_owned())],
        ..self::choice()
    };
    let words = refused(VMWARE, &unknown);
    assert!(words.ends_with("VM Network, Storage"), "{words}");
}

#[test]
fn a_machine_without_nics_has_no_network() {
    let text = VIRTUALBOX.replace("<rasd:ResourceType>10<", "<rasd:ResourceType>99<");
    let plan = planned(&text, &choice()).unwrap();
    assert_eq!(plan.machine["spec"]["network"], json!({"disabled": true}));
    assert!(plan.report.render().contains("device Ethernet adapter"));
}

#[test]
fn if_all_nics_have_networks_the_pod_network_is_one_more() {
    let choice = Choice {
        networks: vec![("NAT".to_owned(), "lab".to_owned())],
        ..choice()
    };
    let plan = planned(VIRTUALBOX, &choice).unwrap();
    let interfaces = &plan.machine["spec"]["network"]["interfaces"];
    assert_eq!(interfaces[1], json!({"name": "eth1", "networkRef": "lab"}));
    assert!(plan.report.render().contains("one NIC more"));
}

#[test]
fn what_no_machine_can_be_is_refused() {
    let cpus = |count: &str| {
        let old = "<rasd:VirtualQuantity>2<";
        VIRTUALBOX.replace(old, &format!("<rasd:VirtualQuantity>{count}<"))
    };
    for count in ["0", "513", "18446744073709551615"] {
        let words = refused(&cpus(count), &choice());
        assert!(words.contains("out of the range"), "{words}");
    }
    assert!(refused(&cpus("many"), &choice()).contains("no CPUs"));
    let memory = |megabytes: &str| VIRTUALBOX.replace(">1000<", &format!(">{megabytes}<"));
    for megabytes in ["31", "16777217"] {
        let words = refused(&memory(megabytes), &choice());
        assert!(words.contains("bytes of memory"), "{words}");
    }
    assert!(refused(&memory("99999999999999"), &choice()).contains("no number of bytes"));
    let empty = VIRTUALBOX.replace("ovf:fileRef=\"file1\"", "");
    assert!(refused(&empty, &choice()).contains("no disk with content"));
    let dangling = VIRTUALBOX.replace("ovf:fileRef=\"file1\"", "ovf:fileRef=\"file2\"");
    assert!(refused(&dangling, &choice()).contains("no disk with content"));
    let parent = VIRTUALBOX.replace("ovf:fileRef", "ovf:parentRef=\"d\" ovf:fileRef");
    assert!(refused(&parent, &choice()).contains("parent disk"));
    let chunks = VIRTUALBOX.replace("ovf:id=\"file1\"", "ovf:id=\"file1\" ovf:chunkSize=\"9\"");
    assert!(refused(&chunks, &choice()).contains("in pieces"));
}

#[test]
fn an_address_that_is_none_is_left_out() {
    let keeps = Choice {
        keeps_macs: true,
        ..choice()
    };
    for address in [
        "0180C2000000",
        "000000000000",
        "7",
        "08:00:27:aa:bb:cg",
        "\u{e9}80027AABBCC",
    ] {
        let text = VIRTUALBOX.replace("080027AABBCC", address);
        let plan = planned(&text, &keeps).unwrap();
        assert!(plan.machine["spec"]["network"].is_null(), "{address}");
        assert!(plan.report.render().contains("no MAC address"), "{address}");
    }
}

#[test]
fn sizes_are_in_the_largest_whole_unit() {
    let shown = [1 << 30, 3 << 20, 5 << 10, 1000].map(quantity);
    assert_eq!(shown, ["1Gi", "3Mi", "5Ki", "1000"]);
}
