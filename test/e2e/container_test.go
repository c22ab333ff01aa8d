package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// containerCommand runs the binary as the container runtime would: in a mount
// namespace with a read-only root and the service account's token, with the
// container's environment and volumes, with its own /proc/sys read-only, as its user, and
// with no capability but those it adds.
func (n *node) containerCommand(spec *corev1.PodSpec) *exec.Cmd {
	n.t.Helper()
	c := &spec.Containers[0]
	env := n.containerEnv(c)
	account := n.accountFiles()
	capabilities := "-all"
	for _, add := range c.SecurityContext.Capabilities.Add {
		capabilities += ",+" + strings.ToLower(string(add))
	}
	if drop := c.SecurityContext.Capabilities.Drop; !slices.Contains(drop, "ALL") {
		n.t.Fatalf("the container drops %v, want all capabilities", drop)
	}
	user := c.SecurityContext.RunAsUser
	if !*c.SecurityContext.RunAsNonRoot || *user == 0 {
		n.t.Fatal("the container runs as root")
	}
	n.must(os.Chown(filepath.Join(account, "token"), int(*user), -1)) // as the kubelet does
	if !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation {
		n.t.Fatal("the container's root is writable, or privileges can grow")
	}
	const enter = `set -e
		mount -t tmpfs tmpfs /run
		mount -t tmpfs tmpfs /var/lib
		mkdir -p /run/secrets/kubernetes.io
		mv "$ACCOUNT" /run/secrets/kubernetes.io/serviceaccount
		test -e /var/run/secrets/kubernetes.io/serviceaccount/token
		echo "$VOLUMES" | while read -r host inside; do
			mkdir -p "$inside"
			mount --bind "$host" "$inside"
		done
		mount --bind /proc/sys /proc/sys
		mount -o remount,bind,ro /proc/sys
		mount -o remount,bind,ro /
		exec setpriv --no-new-privs --reuid="$USER" --regid="$GROUP" --clear-groups --inh-caps="$CAPABILITIES" --ambient-caps="$CAPABILITIES" --bounding-set="$CAPABILITIES" "$@"`
	args := []string{"--mount", "sh", "-c", enter, "sh", n.imageBinary()}
	for _, a := range c.Args {
		args = append(args, os.Expand(strings.NewReplacer("$(", "${", ")", "}").Replace(a), func(name string) string {
			return env[name]
		}))
	}
	cmd := exec.Command("unshare", args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "ACCOUNT=" + account, "CAPABILITIES=" + capabilities,
		fmt.Sprint("USER=", *user), fmt.Sprint("GROUP=", *c.SecurityContext.RunAsGroup), "VOLUMES=" + n.volumePaths(spec)}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// volumePaths lists the directories that the container is given, one in a line with the
// path in it: those of the host, and those with the files of ConfigMaps. They have to be
// where the test can make them.
func (n *node) volumePaths(spec *corev1.PodSpec) string {
	n.t.Helper()
	var lines []string
	for _, m := range spec.Containers[0].VolumeMounts {
		if !strings.HasPrefix(m.MountPath, "/run/") && !strings.HasPrefix(m.MountPath, "/var/lib/") {
			n.t.Fatalf("volume mount %v: want it in /run or /var/lib", m)
		}
		at := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if at < 0 {
			n.t.Fatalf("no volume %s", m.Name)
		}
		switch v := spec.Volumes[at]; {
		case v.HostPath != nil && !m.ReadOnly:
			lines = append(lines, v.HostPath.Path+" "+m.MountPath)
		case v.ConfigMap != nil && m.ReadOnly:
			lines = append(lines, n.configFiles(v.ConfigMap.Name)+" "+m.MountPath)
		default:
			n.t.Fatalf("volume %v, mounted as %v: want a writable directory of the host, or a ConfigMap", v, m)
		}
	}
	return strings.Join(lines, "\n")
}

// configFiles makes a directory with the files of a ConfigMap.
func (n *node) configFiles(name string) string {
	n.t.Helper()
	config, err := n.plane.client.CoreV1().ConfigMaps("kube-system").Get(n.ctx, name, metav1.GetOptions{})
	n.must(err)
	dir := n.t.TempDir()
	for file, text := range config.Data {
		n.must(os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	return dir
}

// containerEnv is the container's environment on the node.
func (n *node) containerEnv(c *corev1.Container) map[string]string {
	n.t.Helper()
	env := map[string]string{}
	for _, from := range c.EnvFrom {
		config, err := n.plane.client.CoreV1().ConfigMaps("kube-system").Get(n.ctx, from.ConfigMapRef.Name,
			metav1.GetOptions{})
		n.must(err)
		maps.Copy(env, config.Data)
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			env[e.Name] = e.Value
			continue
		}
		if e.ValueFrom.FieldRef.FieldPath != "spec.nodeName" {
			n.t.Fatalf("environment variable %s: %v", e.Name, e)
		}
		env[e.Name] = n.name
	}
	return env
}

// accountFiles makes a directory as the kubelet projects it into pods.
func (n *node) accountFiles() string {
	n.t.Helper()
	kubeconfig, err := n.plane.cluster.ServiceAccountKubeconfig(n.ctx, "kube-system", deployed)
	n.must(err)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	n.must(err)
	dir := filepath.Join(n.t.TempDir(), "serviceaccount")
	n.must(os.Mkdir(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "token"), []byte(config.BearerToken), 0o600),
		os.WriteFile(filepath.Join(dir, "ca.crt"), config.CAData, 0o644),
		os.WriteFile(filepath.Join(dir, "namespace"), []byte("kube-system"), 0o644))
	return dir
}
