module vmlet.dev/tests/tools/helm

go 1.26.2

require helm.sh/helm/v4 v4.3.1
