package kernel

import (
	"errors"

	"nftproxy/nft"
)

// Config says where to work.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in. 0 is the
	// one of the calling thread. It can be closed after Open.
	NetNS int
}

// Conn works on the tables of one network namespace. Its methods are safe for
// concurrent use; Apply and Claim are done one after the other.
type Conn struct{}

// Open opens a socket for writing, which owns the tables where the kernel has
// ownership, and one for reading. It needs CAP_NET_ADMIN in the namespace only
// once something is read or written.
func Open(config Config) (*Conn, error) { return nil, errors.ErrUnsupported }

// Close closes both sockets. Tables stay; owned ones become orphans, which
// anyone may change until they are claimed.
func (c *Conn) Close() error { return errors.ErrUnsupported }

// Apply carries out the batch as one transaction: all of it takes effect, or,
// with a *BatchError, nothing. An error that matches ErrOutcomeUnknown leaves
// open what did.
func (c *Conn) Apply(b nft.Batch) error { return errors.ErrUnsupported }

// Claim takes those of the program's tables that exist into possession, with
// their contents, where the kernel and the table allow it. Tables that do not
// exist, or were made without ownership, are left as they are: see Owned. A
// table that another process owns is an error that matches EPERM.
func (c *Conn) Claim(want *nft.Program) error { return errors.ErrUnsupported }

// Owned says whether the table is this Conn's own, so that nobody else can
// change it.
func (c *Conn) Owned(id nft.TableID) bool { return false }

// Read returns the tables that want names, as the kernel has them. A set or
// chain that is exactly as want has it is returned as want's own pointer; a set
// that is not, as a Set without key, and a chain that is not, with a rule of
// nft.Unknown.
func (c *Conn) Read(want *nft.Program) (*nft.Model, error) { return nil, errors.ErrUnsupported }

// Generation returns the number of the namespace's ruleset, which each
// transaction of anybody raises.
func (c *Conn) Generation() (uint32, error) { return 0, errors.ErrUnsupported }

// TableInfo says whose a table is.
type TableInfo struct {
	ID nft.TableID
	// Flags are the kernel's NFT_TABLE_F_*: 1 dormant, 2 owner, 4 persist.
	Flags uint32
	// Owner is the netlink port ID of the socket that owns it (usually the
	// process's PID), or 0.
	Owner uint32
}

// Tables returns the tables of that name, in both families.
func (c *Conn) Tables(name string) ([]TableInfo, error) { return nil, errors.ErrUnsupported }

// DeleteTables deletes the tables of that name, in both families, in one
// transaction. That there is none is no error. A table that another process
// owns is an error that matches EPERM.
func (c *Conn) DeleteTables(name string) error { return errors.ErrUnsupported }
