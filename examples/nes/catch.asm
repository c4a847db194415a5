; Catch: fruit falls, and the pad moves a basket to the left and to the right to catch it.
; A game has 20 pieces of fruit. Its score is the number that were caught; START begins another game when it is over.
; No timing is critical: all that moves is computed once per frame, after the picture.

; Memory. Programs that play the game read and write it, so that these addresses are part of its interface.
seed    = $00   ; the state of the random numbers, which only the game's start leaves as it is
score   = $01   ; pieces that were caught
left    = $02   ; pieces that are left, with the falling one
over    = $03   ; 1: the game is over
basket  = $04   ; pixel column of the basket's left edge
fruit_x = $05   ; pixel column of the fruit's left edge
fruit_y = $06   ; pixel row of the fruit's upper edge
buttons = $07   ; A, B, SELECT, START, UP, DOWN, LEFT and RIGHT, from the highest bit on
drawn   = $08   ; 1: a picture has been drawn since the last frame was computed
column  = $09   ; where the next sprites are put
level   = $0A
parts   = $0B   ; sprites that are still to be put
sprites = $0200 ; 64 sprites of four bytes: row, tile, colours, column

PIECES       = 20
FRUIT_SIZE   = 16
BASKET_WIDTH = 32
BASKET_ROW   = 200
BASKET_SPEED = 4    ; pixels per frame
FALL_SPEED   = 3
FIRST_ROW    = 40
FIELD_LEFT   = 16   ; columns between the walls
FIELD_RIGHT  = 240

SKY    = 0          ; tiles, in the order at the end of this file
BRICK  = 1
GRASS  = 2
POINT  = 3
STALK  = 4          ; the left halves of the fruit, which is symmetric
FLESH  = 5
HANDLE = 6          ; the left end of the basket, and its middle
WEAVE  = 7
MIRROR = $40        ; a sprite is mirrored

PPU_CONTROL = $2000
PPU_MASK    = $2001
PPU_STATUS  = $2002
PPU_SCROLL  = $2005
PPU_ADDRESS = $2006
PPU_DATA    = $2007
SPRITE_COPY = $4014
SOUND       = $4015
PAD         = $4016
FRAME_COUNT = $4017

        .org $C000
start:  SEI
        CLD
        LDX #$FF
        TXS
        INX
        STX PPU_CONTROL     ; no interrupts and no picture while the memory of the picture is filled
        STX PPU_MASK
        STX SOUND
        LDA #$40
        STA FRAME_COUNT
        BIT PPU_STATUS
warm_1: BIT PPU_STATUS      ; the picture unit is ready after two pictures
        BPL warm_1
warm_2: BIT PPU_STATUS
        BPL warm_2
        LDA #$FF            ; a row below the picture hides a sprite
        LDX #0
hide:   STA sprites,X
        INX
        BNE hide
        JSR colours
        JSR scene
        JSR begin
        LDA #$80            ; an interrupt after each picture
        STA PPU_CONTROL
        LDA #$1E            ; show background and sprites
        STA PPU_MASK

frame:  LDA drawn
        BEQ frame
        LDA #0
        STA drawn
        JSR read
        LDA over
        BEQ play
        LDA buttons
        AND #%00010000      ; START
        BEQ frame
        JSR begin
        JMP frame
play:   JSR move
        JSR fall
        JSR place
        JMP frame

; Begins a game.
begin:  LDA #0
        STA score
        STA over
        STA drawn
        LDA #PIECES
        STA left
        LDA #116
        STA basket
        JSR drop
        JMP place

; Puts the next fruit in a random column.
drop:   LDA #FIRST_ROW
        STA fruit_y
again:  JSR random
        CMP #FIELD_RIGHT-FIELD_LEFT-FRUIT_SIZE+1
        BCS again
        ADC #FIELD_LEFT     ; the carry is clear
        STA fruit_x
        RTS

; Returns a random number in A: seven steps of a shift register of 8 bits, which visits all values but 0.
random: LDA seed
        BNE shift
        LDA #$A5
shift:  LDX #7
step:   ASL A
        BCC kept
        EOR #$1D
kept:   DEX
        BNE step
        STA seed
        RTS

; Reads the pad.
read:   LDA #1
        STA PAD
        LSR A
        STA PAD
        LDX #8
bit:    LDA PAD
        LSR A
        ROL buttons
        DEX
        BNE bit
        RTS

; Moves the basket between the walls.
move:   LDA buttons
        AND #%00000010      ; LEFT
        BEQ right
        LDA basket
        CMP #FIELD_LEFT+BASKET_SPEED
        BCC right
        SBC #BASKET_SPEED
        STA basket
right:  LDA buttons
        AND #%00000001      ; RIGHT
        BEQ moved
        LDA basket
        CMP #FIELD_RIGHT-BASKET_WIDTH-BASKET_SPEED+1
        BCS moved
        ADC #BASKET_SPEED
        STA basket
moved:  RTS

; Lets the fruit fall, and counts it where it reaches the basket's row.
fall:   LDA fruit_y
        CLC
        ADC #FALL_SPEED
        STA fruit_y
        CMP #BASKET_ROW-FRUIT_SIZE+1
        BCC fallen
        LDA fruit_x         ; caught if it shares a column with the basket
        CLC
        ADC #FRUIT_SIZE-1
        SEC
        SBC basket
        CMP #BASKET_WIDTH+FRUIT_SIZE-1
        BCS missed
        INC score
missed: DEC left
        BEQ ends
        JMP drop
ends:   INC over
fallen: RTS

; Puts the sprites where the fruit and the basket are: four for each. X is a place in `sprites`, and Y a part.
place:  LDX #0
        LDY #0
        LDA fruit_x
        STA column
        LDA fruit_y
        STA level
        JSR four
        LDA basket
        STA column
        LDA #BASKET_ROW
        STA level
four:   LDA #4
        STA parts
part:   LDA level
        CLC
        ADC part_rows,Y
        STA sprites,X
        LDA part_tiles,Y
        STA sprites+1,X
        LDA part_colours,Y
        STA sprites+2,X
        LDA column
        CLC
        ADC part_columns,Y
        STA sprites+3,X
        INX
        INX
        INX
        INX
        INY
        DEC parts
        BNE part
        RTS

; Sets the colours of background and sprites.
colours:
        LDA #$3F
        STA PPU_ADDRESS
        LDX #0
        STX PPU_ADDRESS
colour: LDA palette,X
        STA PPU_DATA
        INX
        CPX #32
        BNE colour
        RTS

; Draws the background: 28 rows of sky between two walls, and two of grass.
scene:  LDA #$20
        STA PPU_ADDRESS
        LDA #0
        STA PPU_ADDRESS
        LDY #28
row:    JSR wall
        LDX #28
        LDA #SKY
sky:    STA PPU_DATA
        DEX
        BNE sky
        JSR wall
        DEY
        BNE row
        LDX #64
        LDA #GRASS
grass:  STA PPU_DATA
        DEX
        BNE grass
        LDX #64             ; the same colours everywhere
        LDA #0
plain:  STA PPU_DATA
        DEX
        BNE plain
        RTS

wall:   LDA #BRICK
        STA PPU_DATA
        STA PPU_DATA
        RTS

; Draws a row of points in the row of tiles that begins at $20xx, X: as many as A says.
points: LDY #$20
        STY PPU_ADDRESS
        STX PPU_ADDRESS
        TAX
        LDY #PIECES
point:  LDA #POINT
        DEX
        BPL put
        LDX #0              ; the following ones are sky
        LDA #SKY
put:    STA PPU_DATA
        DEY
        BNE point
        RTS

; After each picture: copies the sprites, and draws the score and, below it, the pieces that are left.
picture:
        PHA
        TXA
        PHA
        TYA
        PHA
        LDA #>sprites
        STA SPRITE_COPY
        BIT PPU_STATUS
        LDA score
        LDX #$46            ; row 2, column 6
        JSR points
        LDA left
        LDX #$86            ; row 4
        JSR points
        LDA #0
        STA PPU_SCROLL
        STA PPU_SCROLL
        LDA #1
        STA drawn
        PLA
        TAY
        PLA
        TAX
        PLA
        RTI

part_rows:
        .byte 0, 0, 8, 8, 0, 0, 0, 0
part_columns:
        .byte 0, 8, 0, 8, 0, 8, 16, 24
part_tiles:
        .byte STALK, STALK, FLESH, FLESH, HANDLE, WEAVE, WEAVE, HANDLE
part_colours:
        .byte 0, MIRROR, 0, MIRROR, 1, 1, 1, MIRROR+1

palette:
        .byte $01,$17,$1A,$30, $01,$17,$1A,$30, $01,$17,$1A,$30, $01,$17,$1A,$30
        .byte $01,$28,$2A,$30, $01,$27,$37,$30, $01,$28,$2A,$30, $01,$28,$2A,$30

        .org $FFFA
        .word picture, start, start

; SKY
        .tile
        ........
        ........
        ........
        ........
        ........
        ........
        ........
        ........
; BRICK
        .tile
        1111111.
        1111111.
        1111111.
        ........
        111.1111
        111.1111
        111.1111
        ........
; GRASS
        .tile
        2.2..2.2
        22222222
        22222222
        22222222
        22222222
        22222222
        22222222
        22222222
; POINT
        .tile
        ........
        ........
        .333333.
        .333333.
        .333333.
        .333333.
        ........
        ........
; STALK
        .tile
        .......2
        ......22
        ....1112
        ..111111
        .1133111
        .1331111
        11311111
        11111111
; FLESH
        .tile
        11111111
        11111111
        11111111
        .1111111
        .1111111
        ..111111
        ...11111
        .....111
; HANDLE
        .tile
        .11.....
        12......
        12222222
        12121212
        12222222
        .1212121
        .1222222
        ..111111
; WEAVE
        .tile
        ........
        ........
        22222222
        12121212
        22222222
        21212121
        22222222
        11111111
