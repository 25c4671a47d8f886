module vmlet.dev/tests/tools/s3

go 1.26.2

require github.com/versity/versitygw v1.8.0
