package kernel

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// NFTA_TABLE_HANDLE, NFTA_TABLE_USERDATA and NFTA_TABLE_OWNER, which x/sys/unix lacks.
const (
	attrTableHandle   = 4
	attrTableUserdata = 6
	attrTableOwner    = 7
)

// tableComment is the comment of each table that a Conn has made; nft prints it. By the
// comment, tables of nftproxy are known under any name. Linux keeps it since 5.10.
const tableComment = "kept by nftproxy, a Kubernetes service proxy"

// TableInfo says which process owns a table, and whether an nftproxy made it.
type TableInfo struct {
	ID nft.TableID
	// Handle grows from one table to the next that is made in the network namespace.
	Handle uint64
	// Flags are the kernel's NFT_TABLE_F_*: 1 dormant, 2 owner, 4 persist.
	Flags uint32
	// Owner is the netlink port ID of the socket that owns the table (usually the
	// process's PID), or 0.
	Owner uint32
	// Ours says that an nftproxy has made the table.
	Ours bool
	// Objects is the number of chains, sets and named objects in the table.
	Objects int
}

// Orphan reports whether the table's owner has gone. Another process can own it.
func (t TableInfo) Orphan() bool { return t.Flags&ownedTable == tablePersist }

// Tables returns the tables of that name, in both families.
func (c *Conn) Tables(name string) ([]TableInfo, error) {
	var tables []TableInfo
	for _, f := range nft.Families() {
		t, found, err := c.lookUpTable(nft.TableID{Family: f, Name: name})
		if err != nil {
			return nil, err
		}
		if found {
			tables = append(tables, t)
		}
	}
	return tables, nil
}

func (c *Conn) lookUpTable(id nft.TableID) (t TableInfo, found bool, err error) {
	c.reader.Lock()
	defer c.reader.Unlock()
	attrs, err := c.reader.Get(unix.NFT_MSG_GETTABLE, uint8(id.Family), new(nfnetlink.Encoder).Text(unix.NFTA_TABLE_NAME,
		id.Name).B)
	if errors.Is(err, unix.ENOENT) {
		return TableInfo{}, false, nil
	}
	if errors.Is(err, unix.EPERM) {
		return TableInfo{}, false, fmt.Errorf("look up table %s: %w (%s)", id, err, needsAdmin)
	}
	if err != nil {
		return TableInfo{}, false, fmt.Errorf("look up table %s: %w", id, err)
	}
	return tableInfo(id, attrs), true, nil
}

func tableInfo(id nft.TableID, attrs nfnetlink.Attributes) TableInfo {
	return TableInfo{
		ID: id, Handle: attrs.Uint64(attrTableHandle), Flags: attrs.Uint32(unix.NFTA_TABLE_FLAGS),
		Owner:   attrs.Uint32(attrTableOwner),
		Ours:    string(attrs.Get(attrTableUserdata)) == string(tableUserdata()),
		Objects: int(attrs.Uint32(unix.NFTA_TABLE_USE)),
	}
}

func tableUserdata() []byte {
	return userdata.AppendString(nil, userdata.TypeComment, tableComment)
}

// OurTables returns the tables that an nftproxy has made, under any name, in both families.
// Tables of versions that set no comment are not among them.
func (c *Conn) OurTables() ([]TableInfo, error) {
	c.reader.Lock()
	defer c.reader.Unlock()
	var tables []TableInfo
	for _, f := range nft.Families() {
		err := c.reader.Receive(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, uint8(f), nil, func(m nfnetlink.Message) error {
			attrs := m.Attributes()
			id := nft.TableID{Family: f, Name: attrs.Text(unix.NFTA_TABLE_NAME)}
			if t := tableInfo(id, attrs); t.Ours {
				tables = append(tables, t)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list tables of family %s: %w", f, err)
		}
	}
	return tables, nil
}

// DeleteTables deletes the tables of that name, in both families. Missing tables are no error. A
// table that another process owns is an error that matches EPERM.
func (c *Conn) DeleteTables(name string) error {
	tables, err := c.Tables(name)
	if err != nil {
		return err
	}
	return c.Delete(tables)
}

// Delete deletes the tables with their contents. A missing table is an error. A table that
// another process owns is an error that matches EPERM.
//
// It empties all chains in a transaction before: the kernel hides the elements of a deleted table's maps
// (nft_map_deactivate) a moment before the last packet has left its rules. Such a packet would not find its Service and
// would be refused, although another proxy's rules follow.
func (c *Conn) Delete(tables []TableInfo) error {
	if len(tables) == 0 {
		return nil
	}
	var empty, remove nft.Batch
	for _, t := range tables {
		empty.Ops = append(empty.Ops, nft.FlushTable{Table: t.ID})
		remove.Ops = append(remove.Ops, nft.DeleteTable{Table: t.ID})
	}
	if err := c.Apply(empty); err != nil {
		return err
	}
	awaitPackets()
	return c.Apply(remove)
}

// awaitPackets waits until no packet is under way that has met earlier rules. The kernel handles packets within RCU
// read sections, for whose end membarrier waits (synchronize_rcu in kernel/sched/membarrier.c). Kernels booted with
// nohz_full do not have this command, and a sandbox may forbid it. There, a time must do.
func awaitPackets() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL
	const longEnough = 100 * time.Millisecond
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		time.Sleep(longEnough)
	}
}

// Owned reports whether this Conn owns the table, so that no other process can change it.
// Kernels before Linux 6.9 have no ownership, and a table that was made without an owner
// has none.
func (c *Conn) Owned(id nft.TableID) (bool, error) {
	t, _, err := c.lookUpTable(id)
	return t.Owner != 0 && t.Owner == c.writer.Port, err
}

// Objects returns the number of chains, sets and named objects in the table, 0 if there is no table.
func (c *Conn) Objects(id nft.TableID) (int, error) {
	t, _, err := c.lookUpTable(id)
	return t.Objects, err
}

// Own makes this Conn the owner of an orphan, with its contents, and wakes a dormant table.
// Any other table stays as it is (see Owned), and then Own writes nothing. A table that
// another process owns is an error that matches EPERM.
func (c *Conn) Own(id nft.TableID) error {
	t, found, err := c.lookUpTable(id)
	if err != nil {
		return fmt.Errorf("own table %s: %w", id, err)
	}
	foreign := t.Owner != 0 && t.Owner != c.writer.Port
	if !found || !t.Orphan() && !foreign && t.Flags&tableDormant == 0 {
		return nil
	}
	if err := c.Apply(nft.Batch{Ops: []nft.Op{nft.AddTable{Table: id}}}); err != nil {
		return fmt.Errorf("own table %s: %w", id, err)
	}
	return nil
}

// tableFlags returns the flags with which to add the batch's tables, by the operation's
// index. The kernel takes owner flags only for a new table and for an orphan.
func (c *Conn) tableFlags(b nft.Batch) (map[int]uint32, error) {
	flags, deleted := map[int]uint32{}, map[nft.TableID]bool{}
	for i, op := range b.Ops {
		switch op := op.(type) {
		case nft.DeleteTable:
			deleted[op.Table] = true
		case nft.AddTable:
			t, found, err := c.lookUpTable(op.Table)
			switch {
			case err != nil:
				return nil, err
			case !c.withoutOwner && (!found || deleted[op.Table] || t.Flags&tablePersist != 0):
				flags[i] = ownedTable
			case found && t.Flags&tableDormant != 0:
				flags[i] = t.Flags &^ tableDormant
			}
		}
	}
	return flags, nil
}
