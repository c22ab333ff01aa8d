package cluster

import (
	"encoding/json"
	"fmt"
	"net/netip"
)

// pauseImage keeps the namespaces of a pod.
const PauseImage = "registry.k8s.io/pause:3.10.2"

// containerdConfig is for a computer that has no systemd, may have no AppArmor,
// and where not even root may lower the OOM score of a process (CAP_SYS_RESOURCE).
func containerdConfig() string {
	return `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "` + cniDir + `"
`
}

const (
	cniDir           = "/etc/cni/net.d"
	containerdSocket = "/run/containerd/containerd.sock"
	kubeletDir       = "/etc/kubernetes"
)

// kubeletConfig is a KubeletConfiguration.
func kubeletConfig(cgroup string, dns []netip.Addr) (string, error) {
	var servers []string
	for _, a := range dns {
		servers = append(servers, a.String())
	}
	b, err := json.MarshalIndent(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": kubeletDir + "/ca.crt"},
		},
		"authorization":            map[string]any{"mode": "Webhook"},
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"clusterDomain":            "cluster.local",
		"clusterDNS":               servers,
		"resolvConf":               "/etc/resolv.conf",
		// Each node has the cgroups below one of its own.
		"cgroupDriver":           "cgroupfs",
		"cgroupRoot":             cgroup,
		"failCgroupV1":           false,
		"enforceNodeAllocatable": []string{},
		"oomScoreAdj":            0,
		// The nodes share a disk, which is not theirs to judge or to clean.
		"evictionHard": map[string]string{"memory.available": "50Mi", "nodefs.available": "1%",
			"imagefs.available": "1%"},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"failSwapOn":                  false,
		// Imported images have no credentials that could be verified.
		"imagePullCredentialsVerificationPolicy": "NeverVerify",
		// Pods come and go quickly in tests.
		"serializeImagePulls": false,
		"syncFrequency":       "10s",
		"registryPullQPS":     0,
		"eventRecordQPS":      0,
		"kubeAPIQPS":          200,
		"kubeAPIBurst":        400,
	}, "", "  ")
	if err != nil {
		return "", fmt.Errorf("configuration of the kubelet: %w", err)
	}
	return string(b), nil
}

// sysctls are what the kubelet wants of the kernel (setupKernelTunables in its
// container manager) and would write for the whole computer.
func sysctls() map[string]string {
	return map[string]string{
		"vm/overcommit_memory":      "1",
		"vm/panic_on_oom":           "0",
		"kernel/panic":              "10",
		"kernel/panic_on_oops":      "1",
		"kernel/keys/root_maxkeys":  "1000000",
		"kernel/keys/root_maxbytes": "25000000",
	}
}

// cniConfig is a network in which each pod has a pair of interfaces with its
// node, an address out of each of the node's ranges, and host ports.
func cniConfig(podCIDRs []netip.Prefix) (string, error) {
	var ranges [][]map[string]string
	var routes []map[string]string
	for _, cidr := range podCIDRs {
		ranges = append(ranges, []map[string]string{{"subnet": cidr.String()}})
		everything := "0.0.0.0/0"
		if cidr.Addr().Is6() {
			everything = "::/0"
		}
		routes = append(routes, map[string]string{"dst": everything})
	}
	b, err := json.MarshalIndent(map[string]any{
		"cniVersion": "0.4.0",
		"name":       "pods",
		"plugins": []map[string]any{
			{"type": "ptp", "ipMasq": false, "ipam": map[string]any{
				"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": ranges, "routes": routes,
			}},
			{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		},
	}, "", "  ")
	if err != nil {
		return "", fmt.Errorf("configuration of the pod network: %w", err)
	}
	return string(b), nil
}
