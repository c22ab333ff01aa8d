package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// attrTableOwner is NFTA_TABLE_OWNER, which x/sys/unix lacks.
const attrTableOwner = 7

// TableInfo says whose a table is.
type TableInfo struct {
	ID nft.TableID
	// Flags are the kernel's NFT_TABLE_F_*: 1 dormant, 2 owner, 4 persist.
	Flags uint32
	// Owner is the netlink port ID of the socket that owns it (usually the
	// process's PID), or 0.
	Owner uint32
}

// Orphan says that the table's owner has gone and that it waits for another.
func (t TableInfo) Orphan() bool { return t.Flags&ownedTable == tablePersist }

// Tables returns the tables of that name, in both families.
func (c *Conn) Tables(name string) ([]TableInfo, error) {
	var tables []TableInfo
	for _, f := range nft.Families() {
		t, found, err := c.table(nft.TableID{Family: f, Name: name})
		if err != nil {
			return nil, err
		}
		if found {
			tables = append(tables, t)
		}
	}
	return tables, nil
}

func (c *Conn) table(id nft.TableID) (t TableInfo, found bool, err error) {
	c.reader.Lock()
	defer c.reader.Unlock()
	attrs, err := c.reader.request(unix.NFT_MSG_GETTABLE, id.Family, func(e *encoder) { e.string(unix.NFTA_TABLE_NAME, id.Name) })
	if errors.Is(err, unix.ENOENT) {
		return TableInfo{}, false, nil
	}
	if errors.Is(err, unix.EPERM) {
		return TableInfo{}, false, fmt.Errorf("look up table %s: %w (%s)", id, err, needsAdmin)
	}
	if err != nil {
		return TableInfo{}, false, fmt.Errorf("look up table %s: %w", id, err)
	}
	return TableInfo{id, attributeUint32(attrs, unix.NFTA_TABLE_FLAGS), attributeUint32(attrs, attrTableOwner)}, true, nil
}

// DeleteTables deletes the tables of that name, in both families, in one
// transaction. That there is none is no error. A table that another process
// owns is an error that matches EPERM.
func (c *Conn) DeleteTables(name string) error {
	tables, err := c.Tables(name)
	if err != nil {
		return err
	}
	var b nft.Batch
	for _, t := range tables {
		b.Ops = append(b.Ops, nft.DeleteTable{Table: t.ID})
	}
	return c.Apply(b)
}

// Owned says whether the table is this Conn's own, so that nobody else can
// change it. It is not where the kernel lacks ownership (before Linux 6.9), nor
// where the table was made without it.
func (c *Conn) Owned(id nft.TableID) (bool, error) {
	t, _, err := c.table(id)
	return t.Owner != 0 && t.Owner == c.writer.conn.PID(), err
}

// Claim takes the table, if it was left by an owner, into possession with its
// contents, and wakes a dormant one. Any other stays as it is: see Owned. A table
// that another process owns is an error that matches EPERM. Where there is
// nothing to do, nothing is written.
func (c *Conn) Claim(id nft.TableID) error {
	t, found, err := c.table(id)
	if err != nil {
		return fmt.Errorf("claim table %s: %w", id, err)
	}
	foreign := t.Owner != 0 && t.Owner != c.writer.conn.PID()
	if !found || !t.Orphan() && !foreign && t.Flags&tableDormant == 0 {
		return nil
	}
	if err := c.Apply(nft.Batch{Ops: []nft.Op{nft.AddTable{Table: id}}}); err != nil {
		return fmt.Errorf("claim table %s: %w", id, err)
	}
	return nil
}

// tableFlags returns the flags with which to add the batch's tables, by the
// operation's index. An existing table takes none that concern its owner, except
// that an orphan can be claimed.
func (c *Conn) tableFlags(b nft.Batch) (map[int]uint32, error) {
	var flags map[int]uint32
	deleted := map[nft.TableID]bool{}
	set := func(i int, f uint32) {
		if flags == nil { // few batches add tables
			flags = map[int]uint32{}
		}
		flags[i] = f
	}
	for i, op := range b.Ops {
		switch op := op.(type) {
		case nft.DeleteTable:
			deleted[op.Table] = true
		case nft.AddTable:
			t, found, err := c.table(op.Table)
			switch {
			case err != nil:
				return nil, err
			case !c.withoutOwner && (!found || deleted[op.Table] || t.Flags&tablePersist != 0):
				set(i, ownedTable)
			case found && t.Flags&tableDormant != 0:
				set(i, t.Flags&^tableDormant)
			}
		}
	}
	return flags, nil
}
