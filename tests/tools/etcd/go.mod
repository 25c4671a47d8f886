module vmlet.dev/tests/tools/etcd

go 1.26.2

require go.etcd.io/etcd/server/v3 v3.6.16
