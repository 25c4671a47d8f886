module vmlet.dev/tests/tools/csi

go 1.26.8

require (
	github.com/container-storage-interface/spec v1.13.0
	github.com/kubernetes-csi/external-provisioner/v6 v6.4.0
	github.com/kubernetes-csi/external-snapshotter/client/v8 v8.7.0
	github.com/kubernetes-csi/external-snapshotter/v8 v8.7.0
	google.golang.org/grpc v1.84.0
	google.golang.org/protobuf v1.36.12
	k8s.io/kubelet v0.37.2
)

require (
	golang.org/x/net v0.59.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260928230214-8a89bd6388cc // indirect
)
