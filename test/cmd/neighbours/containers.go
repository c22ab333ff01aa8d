package main

import "fmt"

// published is the port of the node at which the container of an engine or of a network plugin is reached.
const published = 8081

// image makes a folder with a program that answers each connection, in the form that testnet wants.
const image = `mkdir -p /tmp/image/bin
cp /bin/busybox /tmp/image/bin/
printf '#!/bin/busybox sh\necho web 192.0.2.1:1\n' >/tmp/image/bin/answer
chmod +x /tmp/image/bin/answer
`

// answers waits until the program's own port answers a client on the node.
const answers = "\nuntil busybox nc -w 1 192.168.100.1 8081 </dev/null | grep -q web; do sleep 0.1; done\n"

// engines are Docker and podman, each with a container that has a published port.
func engines() []neighbour {
	var all []neighbour
	for _, n := range append(dockers(), podmans()...) {
		n.published = published
		all = append(all, n)
	}
	return all
}

func dockers() []neighbour {
	const unforwarding = "sysctl -q -w net.ipv4.ip_forward=0\n"
	daemons := `{ containerd >/tmp/containerd.log 2>&1 & }
{ dockerd --storage-driver=vfs >/tmp/dockerd.log 2>&1 & }
until docker version >/dev/null 2>&1; do sleep 0.1; done
`
	const end = `kill "$(pidof dockerd)"
while pidof dockerd; do sleep 0.1; done
kill "$(pidof containerd)"
while pidof containerd; do sleep 0.1; done
`
	run := func(name string, port int) string {
		return fmt.Sprintf("docker run -d --restart=always --name %s -p %d:80 busybox /bin/busybox nc -ll -p 80 -e "+
			"/bin/answer\n", name, port)
	}
	one := func(name, what, setting, before, set string) neighbour {
		return neighbour{
			name: name, program: "Docker", what: what, setting: setting, prepare: image,
			packages: []string{"docker.io", "containerd", "iptables"},
			events: []event{
				{nameStart, before + daemons + "tar -C /tmp/image -c . | docker import - busybox\n" + run("web", published) + set +
					answers},
				{"starts a container", run("other", 8082)},
				{"removes a container", "docker rm -f other"},
				{"reloads", `kill -HUP "$(pidof dockerd)"`},
				{"restarts", end + daemons + answers},
			},
			stop: event{"stops", "docker rm -f web\n" + end},
		}
	}
	set := one("docker-drop-set", "the same, with ways for pods in DOCKER-USER", "`iptables -I DOCKER-USER -s PODS -j "+
		"ACCEPT`, `iptables -I DOCKER-USER -d PODS -j ACCEPT`",
		unforwarding, fmt.Sprintf("iptables -I DOCKER-USER -s %s -j ACCEPT\niptables -I DOCKER-USER -d %s -j ACCEPT\n",
			pods4, pods4))
	set.unset = []string{"docker-drop"}
	return []neighbour{
		one("docker", "a container with a published port, on a node that forwards packets before Docker starts", "", "", ""),
		one("docker-drop", "a container with a published port, on a node where Docker switches forwarding on: it sets "+
			"policy drop in FORWARD", "", unforwarding, ""),
		set,
	}
}

func podmans() []neighbour {
	// crun refuses a node that has cgroups of both versions: it sees version 2 alone, and makes no cgroup.
	const unified = "umount -l /sys/fs/cgroup\nmount -t cgroup2 cgroup2 /sys/fs/cgroup\n"
	one := func(name, what, driver, shown string) neighbour {
		head := "export NETAVARK_FW=" + driver + " PODMAN_IGNORE_CGROUPSV1_WARNING=1\n"
		run := func(name string, port int) string {
			return fmt.Sprintf("cp -r /tmp/image /tmp/%s\n%spodman run -d --cgroups=disabled --name %s -p %d:80 --rootfs "+
				"/tmp/%s /bin/busybox nc -ll -p 80 -e /bin/answer\n", name, head, name, port, name)
		}
		return neighbour{
			name: name, program: "Podman", what: what, prepare: image + unified,
			packages: []string{"podman", "netavark", "nftables", "iptables"},
			events: []event{
				{nameStart, run("web", published) + answers + shown},
				{"starts a container", run("other", 8082)},
				{"removes a container", head + "podman rm -f -t 0 other"},
				{"reloads", head + "podman network reload --all"},
				{"restarts its container", head + "podman restart -t 0 web" + answers},
			},
			stop: event{"stops", head + "podman rm -f -t 0 --all"},
		}
	}
	return []neighbour{
		one("podman", "a container with a published port, netavark with nftables", "nftables",
			"nft list table inet netavark"),
		one("podman-iptables", "a container with a published port, netavark with iptables", "iptables",
			"iptables -t nat -S NETAVARK-HOSTPORT-DNAT"),
	}
}
