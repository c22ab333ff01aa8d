package main

import "fmt"

// The CNI plugins that know nftables.
const (
	pluginsModule  = "github.com/containernetworking/plugins"
	pluginsVersion = "v1.10.0"
)

// plugins are network plugins that add pods with a host port to the node. Debian's know iptables only.
func plugins() []neighbour {
	const old = `{"cniVersion": "1.0.0", "name": "net", "type": "firewall", "backend": "iptables"}`
	one := func(name, what, main, folder, portmap, more string) neighbour {
		config := fmt.Sprintf(
			`{"cniVersion":"1.0.0","name":"net",%s,"isGateway":true,"ipMasq":true,"ipam":{"type":"host-local",`+
				`"ranges":[[{"subnet":"10.244.0.128/25"}],[{"subnet":"fd00:244:0:0:8::/80"}]],"routes":[{"dst":"0.0.0.0/0"},`+
				`{"dst":"::/0"}]}}`,
			main)
		return neighbour{
			name: name, program: "CNI plugins", what: what, published: published,
			packages: []string{"containernetworking-plugins", "iptables"},
			prepare:  image + fmt.Sprintf(pluginScripts, config, portmap, more, folder),
			events: []event{
				{nameStart, fmt.Sprintf("/tmp/add web %d", published)},
				{"adds a pod", "/tmp/add other 8082"},
				{"removes a pod", "/tmp/del other 8082"},
				{"adds its pod anew", fmt.Sprintf("/tmp/del web %d\n/tmp/add web %d", published, published)},
			},
			stop: event{"stops", fmt.Sprintf("/tmp/del web %d", published)},
		}
	}
	modern := one("cni-nftables", "bridge (with ipMasq) and portmap, nftables backend: a pod with a host port",
		`"type":"bridge","ipMasqBackend":"nftables"`, "/opt/"+pluginsVersion, "nftables", "")
	modern.packages, modern.programs = []string{"nftables"}, []string{"CNI plugins " + pluginsVersion}
	modern.events[0].Script += "\nnft list table ip cni_hostport\nnft list table inet cni_plugins_masquerade"
	return []neighbour{
		one("cni-bridge", "bridge (with ipMasq), portmap and firewall, iptables backend: a pod with a host port",
			`"type":"bridge"`, "/usr/lib/cni", "iptables", old),
		one("cni-ptp", "ptp (with ipMasq), portmap and firewall, iptables backend: a pod with a host port",
			`"type":"ptp"`, "/usr/lib/cni", "iptables", old),
		modern,
	}
}

// pluginScripts make the scripts add and del, which do what a container runtime does for a pod: NAME PORT. The plugins
// of a network are called in order, each with the result of the one before.
const pluginScripts = `cat >/tmp/net.conf <<'EOF'
%s
EOF
cat >/tmp/plugin <<'EOF'
import json, os, subprocess, sys
command, name, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
main = json.load(open("/tmp/net.conf"))
chain = [main, {"cniVersion": "1.0.0", "name": "net", "type": "portmap", "capabilities": {"portMappings": True}, "backend": "%s",
    "runtimeConfig": {"portMappings": [{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]}}, %s]
folder = "%s/"
kept = "/run/" + name + ".json"
result = json.load(open(kept)) if os.path.exists(kept) else None
for conf in chain if command == "ADD" else reversed(chain):
    if result:
        conf["prevResult"] = result
    env = dict(os.environ, CNI_COMMAND=command, CNI_CONTAINERID=name, CNI_NETNS="/run/netns/" + name, CNI_IFNAME="eth0", CNI_PATH=folder)
    run = subprocess.run([folder + conf["type"]], input=json.dumps(conf), env=env, text=True, capture_output=True)
    if run.returncode:
        sys.exit(conf["type"] + ": " + run.stdout + run.stderr)
    if command == "ADD" and run.stdout.strip():
        result = json.loads(run.stdout)
if command == "ADD":
    json.dump(result, open(kept, "w"))
else:
    os.remove(kept)
EOF
cat >/tmp/add <<'EOF'
#!/bin/sh -e
ip netns add "$1"
python3 /tmp/plugin ADD "$1" "$2"
ip netns exec "$1" busybox nc -ll -p 80 -e /tmp/image/bin/answer >/dev/null 2>&1 &
until ip netns exec "$1" sh -c 'cat /proc/net/tcp /proc/net/tcp6' | grep -q ':0050 0*:0000 0A'; do sleep 0.1; done
EOF
cat >/tmp/del <<'EOF'
#!/bin/sh -e
ip netns pids "$1" | xargs -r kill
python3 /tmp/plugin DEL "$1" "$2"
ip netns delete "$1"
EOF
chmod +x /tmp/add /tmp/del
`
