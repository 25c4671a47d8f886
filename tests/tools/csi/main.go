// A driver of the Container Storage Interface whose volumes are directories of one node, for tests of claims.
//
//	csi-files DIR NODE PLUGINS REGISTRY
//
// DIR has volumes and snapshots, NODE is the name of the node, PLUGINS the folder for the socket of the driver, and
// REGISTRY the folder in which kubelet looks for sockets of plugins. It does the part of node-driver-registrar itself.
// Volumes, clones and snapshots are copies. A snapshot is taken in the first call, and ready to use only from the
// second one on, as with systems that upload it. Block volumes are refused.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const name = "files.csi.vmlet.dev"

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer

	dir    string
	node   string
	socket string
	// One copy at a time: a call that kubelet or a sidecar repeats finds a whole one, or none.
	copying sync.Mutex
}

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: csi-files DIR NODE PLUGINS REGISTRY")
	}
	plugins, registry := os.Args[3], os.Args[4]
	d := &driver{
		dir: os.Args[1], node: os.Args[2], socket: filepath.Join(plugins, "csi.sock"),
	}
	for _, folder := range []string{d.path("volumes"), d.path("snapshots"), plugins, registry} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			log.Fatal(err)
		}
	}
	ends := make(chan error)
	services := grpc.NewServer()
	csi.RegisterIdentityServer(services, d)
	csi.RegisterControllerServer(services, d)
	csi.RegisterNodeServer(services, d)
	go serve(services, d.socket, ends)
	// kubelet calls the driver as soon as it sees this one.
	registrar := grpc.NewServer()
	registration.RegisterRegistrationServer(registrar, d)
	go serve(registrar, filepath.Join(registry, name+".sock"), ends)
	log.Fatal(<-ends)
}

func serve(server *grpc.Server, socket string, ends chan<- error) {
	os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err == nil {
		err = server.Serve(listener)
	}
	ends <- fmt.Errorf("%s: %w", socket, err)
}

func (d *driver) path(parts ...string) string {
	return filepath.Join(append([]string{d.dir}, parts...)...)
}

func (d *driver) volume(id string) (string, error) {
	return d.existing("volumes", id)
}

func (d *driver) existing(kind, id string) (string, error) {
	if id == "" || filepath.Base(id) != id {
		return "", status.Errorf(codes.InvalidArgument, "%q is no name", id)
	}
	path := d.path(kind, id)
	if _, err := os.Stat(path); err != nil {
		return "", status.Errorf(codes.NotFound, "%s: %v", id, err)
	}
	return path, nil
}

// copyTo makes a copy under a name that no reader knows, and renames it.
func (d *driver) copyTo(from, to string) error {
	part := to + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	command := exec.Command("cp", "--archive", "--sparse=always", from, part)
	if output, err := command.CombinedOutput(); err != nil {
		return status.Errorf(codes.Internal, "%v: %s", err, output)
	}
	return os.Rename(part, to)
}

// Identity.

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	capability := &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: service}}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{capability}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// Controller.

func (d *driver) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	all := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
	} {
		rpc := &csi.ControllerServiceCapability_RPC{Type: kind}
		one := &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc},
		}
		all.Capabilities = append(all.Capabilities, one)
	}
	return all, nil
}

func (d *driver) CreateVolume(
	_ context.Context, request *csi.CreateVolumeRequest,
) (*csi.CreateVolumeResponse, error) {
	for _, capability := range request.VolumeCapabilities {
		if capability.GetBlock() != nil {
			return nil, status.Error(codes.InvalidArgument, "volumes are directories, not block devices")
		}
	}
	d.copying.Lock()
	defer d.copying.Unlock()
	if err := d.fill(d.path("volumes", request.Name), request.VolumeContentSource); err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId:      request.Name,
		CapacityBytes: request.GetCapacityRange().GetRequiredBytes(),
		ContentSource: request.VolumeContentSource,
	}}, nil
}

func (d *driver) fill(to string, content *csi.VolumeContentSource) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	kind, id := "snapshots", content.GetSnapshot().GetSnapshotId()
	if id == "" {
		kind, id = "volumes", content.GetVolume().GetVolumeId()
	}
	if content != nil {
		from, err := d.existing(kind, id)
		if err != nil {
			return err
		}
		return d.copyTo(from, to)
	}
	if err := os.Mkdir(to, 0o777); err != nil {
		return err
	}
	// Whatever the mask of this process says: kubelet makes no owner of a directory.
	return os.Chmod(to, 0o777)
}

func (d *driver) DeleteVolume(
	_ context.Context, request *csi.DeleteVolumeRequest,
) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, d.remove("volumes", request.VolumeId)
}

func (d *driver) remove(kind, id string) error {
	path, err := d.existing(kind, id)
	if status.Code(err) == codes.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(path)
}

func (d *driver) ValidateVolumeCapabilities(
	_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	confirmed := &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: request.VolumeCapabilities,
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: confirmed}, nil
}

func (d *driver) CreateSnapshot(
	_ context.Context, request *csi.CreateSnapshotRequest,
) (*csi.CreateSnapshotResponse, error) {
	from, err := d.volume(request.SourceVolumeId)
	if err != nil {
		return nil, err
	}
	d.copying.Lock()
	defer d.copying.Unlock()
	taken := d.path("snapshots", request.Name)
	at := taken + ".at"
	_, known := os.Stat(taken)
	if known != nil {
		if err := d.copyTo(from, taken); err != nil {
			return nil, err
		}
	}
	moment, err := os.Stat(at)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.WriteFile(at, nil, 0o644); err == nil {
			moment, err = os.Stat(at)
		}
	}
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{
		SnapshotId:     request.Name,
		SourceVolumeId: request.SourceVolumeId,
		CreationTime:   timestamppb.New(moment.ModTime().Truncate(time.Second)),
		ReadyToUse:     known == nil,
	}}, nil
}

func (d *driver) DeleteSnapshot(
	_ context.Context, request *csi.DeleteSnapshotRequest,
) (*csi.DeleteSnapshotResponse, error) {
	if err := d.remove("snapshots", request.SnapshotId); err != nil {
		return nil, err
	}
	return &csi.DeleteSnapshotResponse{}, d.remove("snapshots", request.SnapshotId+".at")
}

// Node.

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (d *driver) NodePublishVolume(
	_ context.Context, request *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	from, err := d.volume(request.VolumeId)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(request.TargetPath, 0o755); err != nil {
		return nil, err
	}
	source, err := os.Stat(from)
	if err != nil {
		return nil, err
	}
	target, err := os.Stat(request.TargetPath)
	if err != nil {
		return nil, err
	}
	if os.SameFile(source, target) {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if err := syscall.Mount(from, request.TargetPath, "", syscall.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount %s: %w", from, err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (d *driver) NodeUnpublishVolume(
	_ context.Context, request *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	err := syscall.Unmount(request.TargetPath, 0)
	if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
		return nil, fmt.Errorf("unmount %s: %w", request.TargetPath, err)
	}
	if err := os.Remove(request.TargetPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// Registration with kubelet.

func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: "CSIPlugin", Name: name, Endpoint: d.socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (d *driver) NotifyRegistrationStatus(
	_ context.Context, result *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	log.Printf("registered: %v %s", result.PluginRegistered, result.Error)
	return &registration.RegistrationStatusResponse{}, nil
}
