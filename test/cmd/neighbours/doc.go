// Command neighbours runs nftproxy beside real programs that share a node with it: firewalls, container engines,
// network plugins. It writes docs/neighbours.md.
//
// Each program is that of a Debian package, in a file system tree and namespaces of its own: it sees the network of a
// node of package testnet, and nothing of this computer. Calico's Felix is built of a checkout of its repository.
//
// Each is run twice. Alone, it says which packets it lets pass between the same places, and what it loses. Beside
// nftproxy, the same table of flows is asked after each event, under a steady load. What the program does not forbid
// has to work as without it, what it forbids has to stay forbidden, and no connection may be lost where the program
// alone loses none.
//
// A program that keeps a record of packets or connections runs beside nftproxy that follows all connections: the record
// has to be the same as without that, and nftproxy has to have seen each connection once.
//
// Programs that a whole cluster has, such as pod networks and network policy engines, run on the cluster of command
// realcluster, with its smoke tests and Kubernetes' own.
//
// It needs root, and the network when the tree is made. It changes nothing on this computer but for a folder of the
// user's cache, the files of the results, and empty control groups that Docker leaves behind.
package main
