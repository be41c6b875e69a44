// Command controlplane is what a test cluster runs: `controlplane kube-apiserver FLAGS` is the Kubernetes API
// server and `controlplane etcd FLAGS` its database, both exactly as their projects build them.
package main

import (
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	program := ""
	if len(os.Args) > 1 {
		program = os.Args[1]
		os.Args = os.Args[1:]
	}
	switch program {
	case "kube-apiserver":
		os.Exit(cli.Run(app.NewAPIServerCommand()))
	case "etcd":
		etcdmain.Main(os.Args)
	default:
		fmt.Fprintln(os.Stderr, "usage: controlplane kube-apiserver|etcd FLAGS")
		os.Exit(2)
	}
}
