module github.com/sapwood-fs/sapwood/bindings/go

go 1.22
